"""The oracle: every statistic of `AttentionStatistics` from the whole weight matrix, in float64, naively."""

import math
from typing import Any

import torch
from torch import Tensor


def visible_entries(
    num_queries: int, num_keys: int, *, causal: bool, window: int | None, key_mask: Tensor | None
) -> Tensor:
    """The visible entries, one by one, as the docstring defines them."""
    seen = torch.zeros(num_queries, num_keys, dtype=torch.bool)
    for i in range(num_queries):
        position = i + (num_keys - num_queries if causal else 0)
        start, stop = 0, num_keys
        if causal:
            stop = min(stop, position + 1)
        if window is not None:
            start, stop = max(start, position - window + 1), min(stop, position + window)
        seen[i, start : max(start, stop)] = True
    return seen if key_mask is None else seen & key_mask[..., None, :]


def near_ends(position: Tensor, num_keys: int) -> Tensor:
    """The first keys and the nearest keys, fewer of them for short texts."""
    keys = torch.arange(num_keys)
    first, nearest = min(4, math.ceil(num_keys / 128)), min(64, math.ceil(num_keys / 8))
    return (keys < first) | ((position[:, None] - keys).abs() < nearest)


def dense_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    key_mask: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    scale: float | None = None,
    top_k: int = 0,
    pooled: int = 64,
) -> dict[str, Any]:
    query, key, value = query.double(), key.double(), value.double()
    if query.ndim > 2:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    # What rounding errors of a product are bounded by: terms may cancel.
    terms = query.abs() @ key.abs().mT * abs(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    seen = visible_entries(num_queries, num_keys, causal=causal, window=window, key_mask=key_mask)
    seen = seen.expand(scores.shape)
    masked = scores.masked_fill(~seen, -math.inf)
    every_logit = masked
    if sink is not None:
        column = sink.double()[..., None, None].expand(*scores.shape[:-1], 1)
        every_logit = torch.cat([masked, column], -1)
    visible = seen.sum(-1)
    blind = visible == 0
    logsumexp = every_logit.logsumexp(-1).masked_fill(blind, math.nan)
    weights = (masked - logsumexp[..., None]).exp().masked_fill(blind[..., None], 0.0)
    position = torch.arange(num_queries) + (num_keys - num_queries if causal else 0)
    previous = torch.full_like(logsumexp, math.nan)
    for i in range(num_queries):
        if 0 <= position[i] - 1 < num_keys:
            previous[..., i] = weights[..., i, position[i] - 1]
    top_weights, top_keys = weights.masked_fill(~seen, -1.0).topk(min(top_k, num_keys))
    entropy = torch.special.entr(weights).sum(-1)
    rows = {
        "entropy": entropy,
        "normalized_entropy": (entropy / visible.double().log()).masked_fill(visible < 2, math.nan),
        "max_weight": weights.amax(-1),
        "sink_mass": weights[..., 0],
        "distance": (weights * (position[:, None] - torch.arange(num_keys)).abs()).sum(-1),
        "participation": 1 / weights.square().sum(-1),
        "previous_token": previous,
        "local_mass": (weights * near_ends(position, num_keys)).sum(-1),
        "max_score": masked.amax(-1) if num_keys else torch.full(blind.shape, math.nan),
    }
    rows = {name: row.masked_fill(blind, math.nan) for name, row in rows.items()}
    columns = weights.split(-(-num_keys // pooled), -1)
    blocks = [column.split(-(-num_queries // pooled), -2) for column in columns]
    return rows | {
        "output": weights @ value,
        "logsumexp": logsumexp,
        "visible": visible,
        "scores": scores,
        "terms": terms,
        "seen": seen,
        "weights": weights,
        "top_keys": top_keys.masked_fill(top_weights < 0, -1),
        "top_weights": top_weights.masked_fill(top_weights < 0, math.nan),
        "received_mass": weights.sum(-2),
        "pooled_mean": torch.stack(
            [torch.stack([b.mean((-2, -1)) for b in column], -1) for column in blocks], -1
        ),
        "pooled_max": torch.stack(
            [torch.stack([b.amax((-2, -1)) for b in column], -1) for column in blocks], -1
        ),
    }
