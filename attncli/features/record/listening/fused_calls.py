"""The query, key, value and mask from torch's fused attention and its functions for whole layers."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from attncli.core.layer import Visibility
from attncli.features.record.listening.heard_layers import MOST_SPLIT
from attncli.features.record.listening.kernels import FusedCall, NotHeard, readable, readable_mask

FUSED_ATTENTION = torch._C._nn.scaled_dot_product_attention
"""torch's function, even if a program replaces it by name."""


def sdpa_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> FusedCall:
    """Read the arguments of `scaled_dot_product_attention`."""
    query, key, value = (readable(tensor) for tensor in (query, key, value))
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    # torch aligns the first query with the first key
    offset = 0 if is_causal and num_queries != num_keys else None
    visibility = Visibility(num_queries, num_keys, causal=is_causal, offset=offset)
    factor = query.shape[-1] ** -0.5 if scale is None else float(scale)
    mask = None if attn_mask is None else readable_mask(attn_mask, query.device)
    return FusedCall(query, key, value, visibility, factor, mask)


def flex_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    *others: object,
) -> FusedCall:
    """Read the arguments of flex_attention, with the whole mask from its block mask and `score_mod`."""
    from torch.nn.attention import flex_attention

    query, key, value = (readable(tensor) for tensor in (query, key, value))
    num_texts, num_heads, num_queries = query.shape[:3]
    shape = (num_texts, num_heads, num_queries, key.shape[2])
    if prod(shape) > MOST_SPLIT:
        raise NotHeard(f"flex_attention of {prod(shape):,} scores is too large to compute its mask")
    mask = flex_attention.create_mask(block_mask[-1], *shape, device=str(query.device))
    if score_mod is not flex_attention._identity:
        repeated = key.repeat_interleave(shape[1] // key.shape[1], dim=1)
        scores = (query @ repeated.mT) * scale
        texts, heads, queries, keys = (torch.arange(size, device=query.device) for size in shape)
        changed = score_mod
        for dims in (
            (0, None, None, None, 0),
            (0, None, None, 0, None),
            (0, None, 0, None, None),
            (0, 0, None, None, None),
        ):
            changed = torch.vmap(changed, in_dims=dims)
        added = changed(scores, texts, heads, queries, keys) - scores
        mask = added.masked_fill(~mask, -torch.inf)
    plain = Visibility(*shape[2:])
    return FusedCall(query, key, value, plain, float(scale), mask)


def _attention_fast_path(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
    *,
    num_tokens: int | None = None,
) -> FusedCall:
    """Read the arguments of nn.MultiheadAttention's fast path, in which query, key and value are equal."""
    return _projected_call(query, num_heads, (weight, bias), (mask, mask_type), num_tokens)


def _layer_fast_path(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight: Tensor,
    norm_bias: Tensor,
    *others: Any,
    num_tokens: int | None = None,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> FusedCall:
    """Read the arguments of nn.TransformerEncoderLayer's fast path."""
    mask, mask_type = (*others[6:], mask, mask_type)[:2] if len(others) > 7 else (mask, mask_type)
    norm = (norm_weight, norm_bias, eps) if norm_first else None
    return _projected_call(src, num_heads, (weight, bias), (mask, mask_type), num_tokens, norm)


class FastPath(NamedTuple):
    """The function that reads a fast path's arguments, and the index of the number of heads among them."""

    read: Callable[..., FusedCall]
    heads: int


FAST_PATHS: dict[Callable[..., Any], FastPath] = {
    torch._native_multi_head_attention: FastPath(_attention_fast_path, 4),
    torch._transformer_encoder_layer_fwd: FastPath(_layer_fast_path, 2),
}


KEYS_ALONE = 1
"""The mask type of a mask (text, key)."""


def _projected_call(
    x: Tensor,
    num_heads: int,
    projection: tuple[Tensor, Tensor],
    mask: tuple[Tensor | None, int | None],
    num_tokens: int | None,
    norm: tuple[Tensor, Tensor, float] | None = None,
) -> FusedCall:
    allowed = None
    if x.is_nested and x.layout == torch.strided:
        x, allowed = _padded(x.detach(), num_tokens)
    x = readable(x).to(projection[0].dtype)  # the types may differ under autocast
    if norm is not None:
        x = functional.layer_norm(x, x.shape[-1:], *norm)
    weight, bias = (readable(part) for part in projection)
    parts: Sequence[Tensor] = functional.linear(x, weight, bias).chunk(3, dim=-1)
    query, key, value = (part.reshape(*part.shape[:2], num_heads, -1).transpose(1, 2) for part in parts)
    hides, kind = mask
    if hides is not None:
        # As in torch, every nonzero entry hides a key.
        allowed = ~hides.detach().to(torch.bool)
        allowed = allowed[:, None, None] if kind == KEYS_ALONE else allowed
    plain = Visibility(query.shape[2], key.shape[2])
    return FusedCall(query, key, value, plain, query.shape[-1] ** -0.5, allowed)


def _padded(nested: Tensor, num_tokens: int | None) -> tuple[Tensor, Tensor]:
    """Return padded texts, and the mask (text, 1, query, key) of their real queries and keys."""
    lengths = nested._nested_tensor_size()[:, 0]
    longest = max(num_tokens or 0, int(lengths.max())) if len(lengths) else 0
    if not longest:
        raise NotHeard("the attention has no texts, queries or keys")
    x = nested.to_padded_tensor(0.0)
    x = functional.pad(x, (0, 0, 0, longest - x.shape[1]))
    there = torch.arange(longest) < lengths[:, None]
    return x, (there[:, None, :, None] & there[:, None, None]).to(x.device)
