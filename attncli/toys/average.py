"""Averaging: attention whose scores are all zero, computed in three ways."""

from collections.abc import Mapping
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility
from attncli.core.mechanisms import (
    average_by_loop,
    averaging_weights,
    causal_mask,
    full_mask,
    softmax_averaging_weights,
)
from attncli.core.row_statistics import ROW_STATISTICS
from attncli.core.wanted import Wanted
from attncli.report import Numbers, Report, Statistic, Tensors
from attncli.report_parts import LeadingAxes, build_report, named, row_tensors
from attncli.settings.lessons import AverageSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Draws, embed


def _row_statistics(
    spec: AverageSpec, vectors: Float[Tensor, "*batch token dim"], scores: Float[Tensor, "token token"] | None
) -> dict[str, Tensors]:
    """The row statistics of attention whose scores are zero, or these scores if there are any."""
    lead = LeadingAxes.of(vectors, has_head=False)
    value = lead.layered(vectors)
    zeros = torch.zeros_like(value[..., :1])
    rules = ScoreRules(bias=None if scores is None else scores[None, None].to(value))
    causal = spec.over == "past" and scores is None
    visibility = Visibility(value.shape[-2], value.shape[-2], causal=causal)
    layer = AttentionLayer(zeros, zeros, value, visibility, scale=1.0, rules=rules)
    ranks = min(spec.top_k, layer.shape[3])
    wanted = Wanted(rows=tuple(ROW_STATISTICS), top_k=ranks, received_mass=True)
    return row_tensors(attend(layer, wanted), lead, None)


def _agreement(
    spec: AverageSpec, looped: Float[Tensor, "*batch token dim"], others: Mapping[str, Tensor | None]
) -> Statistic:
    """max |looped - other|, NaN where there is no other; per text where several run together."""
    differences = {
        name: torch.full_like(looped, nan) if other is None else (looped - other).abs()
        for name, other in others.items()
    }
    if spec.batch_size is None and looped.dim() > 2:
        return Tensors({name: named(each.flatten(1).amax(dim=1)) for name, each in differences.items()})
    return Numbers((name, each.max().item()) for name, each in differences.items())


def run(spec: AverageSpec, texts: Texts, draws: Draws) -> Report:
    """Each token's mean (or sum) over what it sees: by a loop, a matrix product and a masked softmax."""
    (source,) = embed(spec, texts, draws)
    vectors = source.vectors
    *batch, num_tokens, _ = vectors.shape
    visible = (causal_mask if spec.over == "past" else full_mask)(num_tokens, num_tokens)
    mean = spec.aggregate == "mean"
    weights = averaging_weights(visible, mean=mean)
    softmax_weights = softmax_averaging_weights(visible)
    notes = ["Attention is message passing on a directed graph: a token takes from the tokens that it sees."]
    if spec.over == "past":
        notes.append("An encoder lets every token see all of them: over all.")
    if spec.method == "softmax":
        weights = softmax_weights
    if spec.softmax_twice:
        weights, visible = weights.softmax(dim=-1), full_mask(num_tokens, num_tokens)
        notes.append(
            "A mistake: softmax of finished weights gives hidden zeros weight, too: the future leaks in."
        )

    looped = average_by_loop(vectors, visible.to(vectors.device), mean=mean)
    product = weights.to(vectors.device) @ vectors
    statistics: dict[str, Statistic] = {}
    if spec.method == "all":
        by_softmax = softmax_weights.to(vectors.device) @ vectors
        others = {"loop_vs_matmul": product, "loop_vs_softmax": by_softmax if mean else None}
        statistics["agreement"] = _agreement(spec, looped, others)
        if not mean:
            notes.append("A softmax row sums to one, so that way averages and cannot sum.")
    if mean:
        statistics |= _row_statistics(spec, vectors, softmax_weights if spec.softmax_twice else None)
    tensors = {
        "input": named(vectors, "token", "dim"),
        "weights": named(weights.expand(*batch, -1, -1), "query", "key"),
        "output": named(looped if spec.method == "loop" else product, "query", "dim"),
    }
    return build_report(spec, texts, tensors, statistics, notes)
