"""The row statistics of a layer's heads: streamed, by some whole rows at a time, or from a matrix."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.experiments.head_weights import DenseWeights, HeadWeights, ScoredWeights
from attncli.inputs.capture import CapturedLayer, WeightsOfLayer
from attncli.mechanisms.attention_layer import AttentionLayer
from attncli.mechanisms.visibility import row_blocks
from attncli.statistics.concentration import max_weight, participation
from attncli.statistics.distance import distance
from attncli.statistics.entropy import entropy, normalized_entropy
from attncli.streaming import attention_statistics

ROW_FIGURES = ("entropy", "normalized_entropy", "max_weight", "distance", "participation")


@dataclass(frozen=True)
class HeadRows:
    """Figures of each row (NaN for one that sees no key), what its weights add up to, and the weights."""

    figures: Mapping[str, Float[Tensor, "head query"]]
    row_sums: Float[Tensor, "head query"]
    weights: HeadWeights


def without_first_keys(layer: CapturedLayer, count: int) -> CapturedLayer:
    """The layer with its first keys (and a learned sink, where there is one) hidden, the rest renormalised.

    Otherwise every causal model looks like its first token, where heads park what they do not need (Xiao
    et al. 2023, 2309.17453).
    """
    if count == 0:
        return layer
    if isinstance(layer, WeightsOfLayer):
        kept = layer.weights.clone()
        kept[:, :, :count] = 0
        return replace(layer, weights=(kept / kept.sum(dim=-1, keepdim=True)).nan_to_num(0.0))
    visibility = layer.visibility
    kept_keys = torch.arange(visibility.num_keys, device=layer.key.device) >= count
    if visibility.key_mask is not None:
        kept_keys &= visibility.key_mask
    return replace(layer, visibility=replace(visibility, key_mask=kept_keys), sink=None)


def weighted_by_values(layer: AttentionLayer, norms: Float[Tensor, "head key"]) -> AttentionLayer:
    """The layer with weights p_ij ||v_j W_O||, each row normalised: ln ||v_j W_O|| joins the scores.

    As a further entry of the keys (and 1 in the queries) where it can, so that it still streams. A sink
    has no value.
    """
    logs = norms.clamp(min=torch.finfo(torch.float32).tiny).log().to(layer.query.dtype)
    if layer.softcap is not None or layer.bias is not None:
        bias = logs.unsqueeze(1) if layer.bias is None else layer.bias + logs.unsqueeze(1)
        return replace(layer, bias=bias, sink=None)
    ones = torch.full_like(layer.query[..., :1], 1 / layer.scale)
    groups = layer.num_heads // layer.key.shape[0]
    key = torch.cat([layer.key.repeat_interleave(groups, dim=0), logs.unsqueeze(-1)], dim=-1)
    value = layer.value.repeat_interleave(groups, dim=0)
    return replace(layer, query=torch.cat([layer.query, ones], dim=-1), key=key, value=value, sink=None)


def head_rows(layer: CapturedLayer) -> HeadRows:
    """The row figures in memory linear in the length, wherever the weights are not there already."""
    if isinstance(layer, WeightsOfLayer):
        weights = layer.weights.double()
        visible = (weights > 0).any(dim=0)
        blocks = row_blocks(weights.shape[1], weights.device)
        return _collected(((q, weights[:, q], visible[q]) for q in blocks), DenseWeights(weights))
    if layer.bias is None and layer.visibility.rule is None:
        return _streamed(layer)
    logsumexp = torch.cat([layer.logsumexp(scores) for _, scores in _score_blocks(layer)], dim=1)
    return _collected(_weight_blocks(layer), ScoredWeights(layer, logsumexp))


def _streamed(layer: AttentionLayer) -> HeadRows:
    visibility = layer.visibility
    # The output for values of 1 is what the rows add up to: less than 1 where a sink takes a share.
    ones = torch.ones_like(layer.key[..., :1]) if layer.sink is not None else None
    statistics = attention_statistics(
        layer.query,
        layer.key,
        ones,
        causal=visibility.causal,
        key_mask=visibility.key_mask,
        window=visibility.window,
        softcap=layer.softcap,
        sink=layer.sink,
        scale=layer.scale,
    )
    figures = {name: getattr(statistics, name) for name in ROW_FIGURES}
    sees_some = (statistics.visible > 0).to(layer.query.dtype)
    row_sums = sees_some if statistics.output is None else statistics.output[..., 0]
    return HeadRows(figures, row_sums, ScoredWeights(layer, statistics.logsumexp))


def _score_blocks(layer: AttentionLayer) -> Iterator[tuple[Int[Tensor, " query"], Tensor]]:
    keys = torch.arange(layer.key.shape[1], device=layer.key.device)
    for queries in layer.row_blocks():
        yield queries, layer.scores(queries, keys).double()


def _weight_blocks(layer: AttentionLayer) -> Iterator[tuple[Int[Tensor, " query"], Tensor, Tensor]]:
    for queries, scores in _score_blocks(layer):
        weights = (scores - layer.logsumexp(scores).unsqueeze(-1)).exp().nan_to_num(0.0)
        yield queries, weights, (scores > -torch.inf).any(dim=0)


def _collected(
    blocks: Iterable[
        tuple[Int[Tensor, " query"], Float[Tensor, "head query key"], Bool[Tensor, "query key"]]
    ],
    weights: HeadWeights,
) -> HeadRows:
    figures: dict[str, list[Tensor]] = {name: [] for name in ROW_FIGURES}
    sums = []
    for queries, rows, visible in blocks:
        hidden = ~visible.any(dim=-1)
        values = {
            "entropy": entropy(rows, visible),
            "normalized_entropy": normalized_entropy(rows, visible),
            "max_weight": max_weight(rows, visible),
            "distance": distance(rows, visible, first_query=int(queries[0])),
            "participation": participation(rows, visible),
        }
        for name, value in values.items():
            figures[name].append(value.masked_fill(hidden, torch.nan))
        sums.append(rows.sum(dim=-1))
    return HeadRows(
        {name: torch.cat(parts, dim=-1) for name, parts in figures.items()}, torch.cat(sums, -1), weights
    )
