"""Builds attention layers from recorded tensors: the text and head axes, the mask and the bias."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.core.mask_tensors import HIDES, hiding_numbers, recognised, split_mask
from attncli.core.row_tiles import GivenWeights
from attncli.features.record.listening.followed import HandmadeAttention
from attncli.features.record.listening.kernels import FusedCall, NotHeard, readable

MOST_RECOGNISED = 2**22
"""Maximum number of entries of a mask that is compared with causal masks and windows."""
MOST_SPLIT = 2**24
"""Maximum number of entries of a mask that is split at once; larger masks are split on demand, in parts."""
HIDES_AS_SCORE = -9e3
"""Scores up to this number count as hidden: a mask such as -10,000 was added to an unknown score."""
CLOSE = 1e-5
"""Largest difference between recomputed weights and a program's weights in float32."""


def fused_layer(call: FusedCall, num_heads: int | None) -> AttentionLayer:
    """Return the layer of a fused call; without `num_heads`, the last leading axis has the heads."""
    query = call.query
    if query.ndim == call.key.ndim:  # queries of one text or head may share all keys
        sizes = zip(query.shape[:-2], call.key.shape[:-2], strict=True)
        query = query.expand(*(keys if size == 1 else size for size, keys in sizes), -1, -1)
    lead = query.shape[:-2]
    parts = query, call.key, call.value
    if num_heads is None or len(lead) < 2 or lead[-1] == num_heads:
        query, key, value = (_four_axes(part, lead, num_heads) for part in parts)
    else:
        query, key, value = (by_heads(_expanded(part, lead), num_heads) for part in parts)
    visibility, rules = call.visibility, call.rules
    if call.mask is not None:
        mask = _four_axes_mask(call.mask, lead, num_heads)
        if _hides_rows_per_head(mask):
            raise NotHeard("its mask hides every key of a row, but only from some heads")
        visibility, bias = _split_mask(mask, query.shape[2], key.shape[2])
        rules = replace(rules, bias=bias)
    return AttentionLayer(query, key, value, visibility, call.scale, rules)


def with_heads_last(read: Callable[[], FusedCall], num_heads: int) -> FusedCall:
    """Return a function's arguments, (head x text, token, dim), as (text, head, token, dim)."""
    call = read()
    lead = call.query.shape[0]

    def turned(tensor: Tensor) -> Tensor:
        if tensor.ndim < 3 or tensor.shape[0] != lead:
            return tensor
        return tensor.reshape(num_heads, lead // num_heads, *tensor.shape[1:]).transpose(0, 1)

    query, key, value = (turned(part) for part in (call.query, call.key, call.value))
    return call._replace(
        query=query, key=key, value=value, mask=None if call.mask is None else turned(call.mask)
    )


def _hides_rows_per_head(mask: Tensor) -> bool:
    """Return True if a row (text, query) has keys in only some heads, which a layer cannot represent."""
    if mask.shape[1] == 1:
        return False
    has_key = (mask if mask.dtype == torch.bool else mask > hiding_numbers(mask)).any(dim=-1)
    return bool((has_key != has_key[:, :1]).any())


def _four_axes(tensor: Tensor, lead: torch.Size, num_heads: int | None) -> Tensor:
    """Reshape a tensor with the query's leading axes, fewer heads, or size 1 to (text, head, token, dim)."""
    *sizes, num_tokens, dim = tensor.shape
    if len(lead) < 2:
        num_heads = num_heads or prod(lead)
        heads = num_heads if prod(sizes) == prod(lead) else 1
        return tensor.reshape(-1, heads, num_tokens, dim).expand(prod(lead) // num_heads, -1, -1, -1)
    sizes = [1] * (len(lead) - len(sizes)) + sizes
    tensor = tensor.reshape(*sizes, num_tokens, dim).expand(*lead[:-1], -1, -1, -1)
    return tensor.reshape(-1, sizes[-1], num_tokens, dim)


def _expanded(tensor: Tensor, lead: torch.Size) -> Tensor:
    """Expand a tensor to all leading axes of the query, repeating shared key/value heads."""
    heads = tensor.shape[-3] if tensor.ndim > 2 else 1
    if heads not in (1, lead[-1]):
        tensor = tensor.repeat_interleave(lead[-1] // heads, dim=-3)
    return tensor.expand(*lead, -1, -1)


def _four_axes_mask(mask: Tensor, lead: torch.Size, num_heads: int | None) -> Tensor:
    """Reshape a mask to (text, head, query, key), where any axis may have size 1."""
    mask = mask.reshape(*[1] * (2 - mask.ndim), *mask.shape)
    mask_lead, size = mask.shape[:-2], mask.shape[-2:]
    if prod(mask_lead) == 1:
        return mask.reshape(1, 1, *size)
    if len(lead) < 2 or (num_heads is not None and lead[-1] != num_heads):
        return by_heads(mask.expand(*lead, *size), num_heads or prod(lead))
    if prod(mask_lead[:-1]) == 1:
        return mask.reshape(1, mask_lead[-1], *size)
    return mask.expand(*lead[:-1], mask_lead[-1], *size).reshape(-1, mask_lead[-1], *size)


def _split_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    """Return the visibility and the bias that a mask with four axes contains."""
    mask = mask.expand(-1, -1, num_queries, num_keys)
    if mask.numel() > MOST_SPLIT:
        return _split_large_mask(mask, num_queries, num_keys)
    visibility, bias = split_mask(mask, num_queries, num_keys)
    seen = visibility.whole(mask.device)
    return (recognised(seen) if seen.numel() <= MOST_RECOGNISED else visibility), bias


def _split_large_mask(mask: Tensor, num_queries: int, num_keys: int) -> tuple[Visibility, Tensor | None]:
    is_bool = mask.dtype == torch.bool
    if is_bool and mask.shape[1] > 1:
        raise NotHeard(f"a mask of {mask.numel():,} entries that differs between heads is too large to read")

    rule = MaskRule(mask, None if is_bool else hiding_numbers(mask))
    return Visibility(num_queries, num_keys, rule=rule), None if is_bool else mask


@dataclass(frozen=True)
class MaskRule:
    """The visibility that a program's mask (text, head, query, key) describes; the mask is not copied.

    `hiding` has the largest numbers that hide a key, or None for a Boolean mask.
    """

    mask: Tensor
    hiding: Tensor | None

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        part = self.mask[:, :, queries][..., keys]
        return (part if self.hiding is None else part > self.hiding[:, :, queries]).any(dim=1)


def program_mask(layer: AttentionLayer | GivenWeights) -> Tensor | None:
    """Return the program's mask, or None if the layer does not refer to it."""
    rule = layer.visibility.rule if isinstance(layer, AttentionLayer) else None
    return rule.mask if isinstance(rule, MaskRule) else None


def with_copied_mask(layer: AttentionLayer) -> AttentionLayer:
    """Return the layer with its own copy of the program's mask, since the program may change the original."""
    rule = layer.visibility.rule
    if not isinstance(rule, MaskRule):
        return layer
    mask = rule.mask.clone()
    rules = layer.rules if layer.rules.bias is None else replace(layer.rules, bias=mask)
    return replace(layer, visibility=replace(layer.visibility, rule=replace(rule, mask=mask)), rules=rules)


CHECKED_ROWS = 8
"""Rows per head in which recomputed weights are compared with a program's weights."""


def make_heads(lead: torch.Size, num_heads: int) -> bool:
    """Return True if `by_heads` can split the leading axes into this number of heads."""
    suffixes = [prod(lead[first:]) for first in range(len(lead) + 1)]
    return num_heads in suffixes or lead.count(num_heads) == 1 or lead[0] % num_heads == 0


def by_heads(tensor: Float[Tensor, "*lead token dim"], num_heads: int | None) -> Tensor:
    """Reshape a tensor with text, head and window axes in any order to (text, head, token, dim).

    The heads are the last axes whose sizes multiply to the number of heads; or else the only axis of that
    size, as in (head, text) and (head, column, row); or else part of the first axis, as in (text x head,
    window). Without a number, the heads are the last axis.
    """
    lead = tensor.shape[:-2]
    if num_heads is None:
        first = len(lead) - 1
        return tensor.reshape(prod(lead[:first]), lead[first] if lead else 1, *tensor.shape[-2:])
    for first in reversed(range(len(lead))):
        if prod(lead[first:]) == num_heads:
            return tensor.reshape(prod(lead[:first]), num_heads, *tensor.shape[-2:])
    if lead.count(num_heads) == 1:
        tensor = tensor.movedim(lead.index(num_heads), -3)
    elif lead and lead[0] % num_heads == 0:
        tensor = tensor.reshape(-1, num_heads, *tensor.shape[1:]).movedim(1, -3)
    return tensor.reshape(-1, tensor.shape[-3] if lead else 1, *tensor.shape[-2:])


def layer_by_hand(
    attention: HandmadeAttention, num_heads: int | None
) -> tuple[AttentionLayer | GivenWeights, Tensor]:
    """Return the layer of an attention that a program computes itself, and the program's weights.

    The layer is GivenWeights if query, key and scale do not reproduce the weights.
    """

    def placed(tensor: Tensor) -> Tensor:
        return by_heads(readable(tensor), num_heads)

    weights = placed(attention.weights)
    seen = (weights > 0).any(dim=1)
    vectors = attention.query, attention.key, attention.value
    parts = [readable(part) for part in vectors if part is not None]
    has_vectors = len(parts) == len(vectors)
    scores = None
    if attention.scores is not None and attention.scores.shape == attention.weights.shape:
        scores = placed(attention.scores)
        seen = _seen_by_scores(scores, weights).any(dim=1)
    if has_vectors and scores is not None:
        query, key, value = (by_heads(part, num_heads) for part in parts)
        added = scores.float() - attention.scale * (query @ key.mT).float()
        is_hidden = (added <= HIDES) | (scores <= torch.finfo(scores.dtype).min)
        seen = (~is_hidden).any(dim=1)
        largest = scores.masked_fill(is_hidden, 0).abs().max()
        rounding = max(CLOSE, torch.finfo(scores.dtype).eps) * (1 + float(largest))
        visible = added.masked_fill(is_hidden, 0)
        mask = ~is_hidden if visible.abs().max() <= rounding else added.masked_fill(is_hidden, -torch.inf)
        if not _hides_rows_per_head(mask):
            visibility, bias = _split_mask(mask, *weights.shape[2:])
            layer = AttentionLayer(query, key, value, visibility, attention.scale, ScoreRules(bias=bias))
            if _reproduces(layer, weights, every_row=attention.is_filled):
                return layer, weights
    if attention.is_filled:
        seen = seen & (weights > 0).any(dim=1)
    return GivenWeights(weights, seen), weights


def _seen_by_scores(scores: Tensor, weights: Tensor) -> Tensor:
    """Return a mask of the keys that are seen, from the scores that entered the softmax.

    If the scores do not reproduce the weights, the weights were changed later, and keys with a weight of 0
    count as hidden. A row in which all scores are hidden has no key.
    """
    is_hidden = scores <= HIDES_AS_SCORE
    again = scores.float().softmax(dim=-1)
    apart = (again - weights.float()).nan_to_num(0.0).abs().max()
    if apart <= max(CLOSE, 4 * torch.finfo(weights.dtype).eps):
        return ~is_hidden
    return (weights > 0) & ~is_hidden.all(dim=-1, keepdim=True)


def hides_rows_by_numbers(
    read: HandmadeAttention | FusedCall, layer: AttentionLayer | GivenWeights, weights: Tensor | None
) -> bool:
    """Return True if rows that count as rows without keys have weights in the program."""
    if weights is not None:
        if isinstance(layer, GivenWeights):
            seen = layer.seen
        elif layer.visibility.is_seeing:
            return False
        else:
            seen = layer.visibility.whole(weights.device)
        is_blind = ~seen.any(dim=-1)
        return bool(is_blind.any()) and bool((is_blind & (weights.sum(dim=(1, 3)) > 0)).any())
    mask = read.mask if isinstance(read, FusedCall) else None
    if mask is None or not mask.is_floating_point() or mask.numel() > MOST_SPLIT:
        return False
    largest = mask.amax(dim=-1, keepdim=True)
    hiding = hiding_numbers(mask.reshape(-1, 1, *mask.shape[-2:])).view(largest.shape)
    return bool(((largest <= hiding) & (largest > -torch.inf)).any())


def _reproduces(layer: AttentionLayer, weights: Tensor, *, every_row: bool) -> bool:
    """Return True if query, key and bias reproduce the weights, in some rows or in all.

    Rows without keys are skipped, because a finite mask gives such rows weights.
    """
    num_queries = weights.shape[2]
    step = 1 if every_row else max(1, num_queries // CHECKED_ROWS)
    rows = torch.arange(0, num_queries, step, device=weights.device)
    scores = layer.scale * (layer.query[:, :, rows] @ layer.key.mT).float()
    if layer.rules.bias is not None:
        scores = scores + layer.rules.bias.expand(-1, -1, num_queries, -1)[:, :, rows]
    seen = layer.visibility.block(rows, torch.arange(weights.shape[3], device=weights.device)).unsqueeze(1)
    again = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    apart = (again - weights[:, :, rows].float().nan_to_num(0.0)).abs()
    apart = apart.masked_fill(~seen.any(dim=-1, keepdim=True), 0.0).max()
    return bool(apart <= max(CLOSE, 4 * torch.finfo(weights.dtype).eps))
