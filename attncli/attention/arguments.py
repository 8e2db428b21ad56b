"""The arguments of `attention_statistics`: what they must be, and the layer that they make."""

import math

import torch
from torch import Tensor

from attncli.attention.engines.jobs import torch_threads
from attncli.attention.layer import AttentionLayer, longest_row
from attncli.attention.score_rules import ScoreRules
from attncli.attention.visibility import Visibility

LARGEST_SCORE = 6.9e14
"""Scores beyond this are refused: their squares must fit float32, and weights could not tell them apart."""
SOFTCAPS = (1e-30, 1e30)


def layer_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    sink: Tensor | None,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
) -> tuple[AttentionLayer, torch.Size]:
    """The layer, and the leading axes of the result; ValueError, naming the argument that does not fit."""
    batch = batch_shape(query, key, value)
    (num_queries, dim), num_keys = query.shape[-2:], key.shape[-2]
    if dim == 0:
        raise ValueError("query has dim 0: it must be at least 1")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 (got {window})")
    if softcap is not None and not SOFTCAPS[0] <= softcap <= SOFTCAPS[1]:
        raise ValueError(f"softcap must be between {SOFTCAPS[0]:g} and {SOFTCAPS[1]:g} (got {softcap})")
    scale = 1 / math.sqrt(dim) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite (got {scale})")
    if key_mask is not None and key_mask.dtype != torch.bool:
        raise ValueError(
            f"key_mask has type {key_mask.dtype}: it must be bool, True where a key may be attended"
        )

    num_heads, lead = (batch[-1], batch[:-1]) if batch else (1, batch)
    kv_heads = key.shape[-3] if batch else 1
    num_texts = math.prod(lead)
    query = query.expand(*batch, num_queries, dim).reshape(num_texts, num_heads, num_queries, dim)
    key, value = (
        shared.expand(*lead, *shared.shape[-3:] if batch else shared.shape).reshape(
            num_texts, kv_heads, *shared.shape[-2:]
        )
        for shared in (key, value)
    )
    logits = masks = None
    if sink is not None:
        logits = _expanded("sink", sink.detach(), batch).reshape(num_texts, num_heads).double()
        if not (logits < math.inf).all():
            raise ValueError("sink has NaN or infinite entries: a logit is finite, or -inf for none")
    if key_mask is not None:
        masks = _expanded("key_mask", key_mask, torch.Size([*batch, num_keys])).reshape(
            num_texts, num_heads, num_keys
        )
        if key_mask.ndim > 1 and key_mask.shape[-2] > 1:  # each head has its own: it becomes a text
            key, value = (shared.repeat_interleave(num_heads // kv_heads, dim=1) for shared in (key, value))
            query, key, value = (tensor.flatten(0, 1).unsqueeze(1) for tensor in (query, key, value))
            logits = None if logits is None else logits.reshape(-1, 1)
            masks = masks.flatten(0, 1)
        else:
            masks = masks[:, 0]
    visibility = Visibility(num_queries, num_keys, causal=causal, window=window, key_mask=masks)
    layer = AttentionLayer(query, key, value, visibility, scale, ScoreRules(softcap=softcap, sink=logits))
    _refuse_large_numbers(layer)
    return layer, batch


def _refuse_large_numbers(layer: AttentionLayer) -> None:
    """ValueError for what is not finite, and for scores that may be too large."""
    with torch_threads(1):
        lengths = {
            "query": layer.longest_query,
            "key": layer.longest_key,
            "value": longest_row(layer.value),
        }
    for name, length in lengths.items():
        if not math.isfinite(length):
            raise ValueError(f"{name} has entries that are NaN, infinite or too large to square")
    reach = abs(layer.scale) * layer.longest_query * layer.longest_key
    if reach > LARGEST_SCORE:
        raise ValueError(f"scores may reach {reach:.0e}, far beyond what weights can show")


def batch_shape(query: Tensor, key: Tensor, value: Tensor) -> torch.Size:
    """The leading axes of the result: equal or broadcast from 1; key heads divide query heads."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2 or tensor.ndim != query.ndim:
            raise ValueError(f"{name} has {tensor.ndim} axes, query has {query.ndim}: equal, and at least 2")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} has type {tensor.dtype}: it must be a floating-point type")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}, query is {query.dtype} on {query.device}: "
                "they must be equal"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key has dim {key.shape[-1]}, query has dim {query.shape[-1]}: they must be equal")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value has {value.shape[-2]} rows, key has {key.shape[-2]} keys: they must be equal"
        )
    if value.shape[:-2] != key.shape[:-2]:
        raise ValueError(
            f"value has leading axes {tuple(value.shape[:-2])}, key has {tuple(key.shape[:-2])}: "
            "they must be equal"
        )
    return _joined(query.shape[:-2], key.shape[:-2])


def _joined(query: torch.Size, key: torch.Size) -> torch.Size:
    """Broadcast two leading shapes; the last axis of key may be a divisor of that of query."""
    grouped = len(query) > 0 and key[-1] > 0 and query[-1] % key[-1] == 0
    fits = [1 in (q, k) or q == k for q, k in zip(query, key, strict=True)]
    if not all(fits[:-1] if grouped else fits):
        raise ValueError(
            f"key has leading axes {tuple(key)}, query has {tuple(query)}: they must be equal or 1, or "
            "the last of them, the number of key heads, must divide the number of query heads"
        )
    return torch.Size(k if q == 1 else q for q, k in zip(query, key, strict=True))


def _expanded(name: str, tensor: Tensor, shape: torch.Size) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: it must broadcast to {tuple(shape)}"
        ) from None
