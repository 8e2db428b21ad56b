"""From transformers' mask functions to a Visibility, so that no mask of all queries and keys is ever made."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from attncli.attention.visibility import Visibility
from attncli.inputs.capture.captured_layers import CannotShow

ROWS = 256
MaskFunction = Callable[..., Any]
Rule = Callable[[Tensor, Tensor], Tensor]


def visibility_of_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> Visibility:
    """A mask as transformers asks for it (AttentionMaskInterface); queries are the last of the keys.

    CannotShow for a cache without the first keys, whose rows would differ.
    """
    if kv_offset:
        raise CannotShow("its cache drops keys, which attn would have to count")
    key_mask = None if attention_mask is None or attention_mask.all() else attention_mask.bool()
    if use_vmap:
        mask = sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            mask_function=mask_function,
            allow_is_causal_skip=False,
            use_vmap=True,
            device=device,
        )
        assert mask is not None
        return Visibility(q_length, kv_length, key_mask=key_mask, rule=lambda i, j: mask[:, 0][:, i][:, :, j])
    texts = torch.arange(batch_size, device=device).view(-1, 1, 1)
    no_head = torch.zeros((), dtype=torch.long, device=device)

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        visible: Tensor = mask_function(texts, no_head, queries.unsqueeze(-1) + q_offset, keys)
        num_texts = len(visible) if visible.ndim == 3 else 1
        return visible.expand(num_texts, len(queries), len(keys))

    is_causal = mask_function is causal_mask_function and q_offset == kv_length - q_length
    known = (True, None) if is_causal else _recognised(mask_function, rule, q_length, kv_length, device)
    causal, window = known if known is not None else (False, None)
    return Visibility(q_length, kv_length, causal, window, key_mask, rule if known is None else None)


def _recognised(
    mask_function: MaskFunction, rule: Rule, num_queries: int, num_keys: int, device: torch.device | str
) -> tuple[bool, int | None] | None:
    """Whether a rule is causal and how wide its window is, where nothing else is in it: all entries agree."""
    if mask_function is bidirectional_mask_function:
        return False, None
    queries, keys = (torch.arange(count, device=device) for count in (num_queries, num_keys))
    first = num_keys - num_queries  # where the first query stands, if the rule is causal
    causal = num_keys > 1 and not rule(queries[:1], keys[first + 1 :]).any()
    width = int(rule(queries[-1:], keys)[0].sum())
    guess = Visibility(num_queries, num_keys, causal, width if width < num_keys else None)
    for block in torch.split(queries, ROWS):
        entries = rule(block, keys)
        if not torch.equal(guess.block(block, keys).expand_as(entries), entries):
            return None
    return guess.causal, guess.window
