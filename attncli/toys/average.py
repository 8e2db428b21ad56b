"""Averaging: attention whose scores are all zero, computed in three ways."""

from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility, Wanted
from attncli.core.mechanisms import (
    average_by_loop,
    averaging_weights,
    causal_mask,
    full_mask,
    softmax_averaging_weights,
)
from attncli.core.row_statistics import ROW_STATISTICS
from attncli.report import Numbers, Report, Statistic, Tensors
from attncli.report_parts import LeadingAxes, build_report, named, row_tensors
from attncli.settings.lessons import AverageSpec
from attncli.settings.text import Texts
from attncli.toys.sources import Draws, embed

Vectors = Float[Tensor, "*batch token dim"]
Weights = Float[Tensor, "token token"]


class Average(NamedTuple):
    """The weights of an average, and each token's mean or sum over what it sees."""

    weights: Weights
    output: Vectors


def average(
    vectors: Vectors,
    *,
    method: str = "matmul",
    over: str = "past",
    aggregate: str = "mean",
    softmax_twice: bool = False,
) -> Average:
    """By a loop, a matrix product, or a softmax of masked zeros, which may by mistake be applied twice."""
    num_tokens, mean = vectors.shape[-2], aggregate == "mean"
    visible = (causal_mask if over == "past" else full_mask)(num_tokens, num_tokens)
    if method == "softmax":
        weights = softmax_averaging_weights(visible)
        weights = weights.softmax(dim=-1) if softmax_twice else weights
    else:
        weights = averaging_weights(visible, mean=mean)
    if method == "loop":
        return Average(weights, average_by_loop(vectors, visible.to(vectors.device), mean=mean))
    return Average(weights, weights.to(vectors.device) @ vectors)


def _row_statistics(spec: AverageSpec, vectors: Vectors, scores: Weights | None) -> dict[str, Tensors]:
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


def _agreement(spec: AverageSpec, vectors: Vectors, by_matrix: Vectors) -> Statistic:
    """The largest differences from the loop, NaN for sums by softmax; per text where several run together."""
    looped, by_softmax = (
        average(vectors, method=way, over=spec.over, aggregate=spec.aggregate).output
        for way in ("loop", "softmax")
    )
    difference = (looped - by_softmax).abs() if spec.aggregate == "mean" else torch.full_like(looped, nan)
    differences = {"loop_vs_matmul": (looped - by_matrix).abs(), "loop_vs_softmax": difference}
    if spec.batch_size is None and looped.dim() > 2:
        return Tensors({name: named(each.flatten(1).amax(dim=1)) for name, each in differences.items()})
    return Numbers((name, each.max().item()) for name, each in differences.items())


def run(spec: AverageSpec, texts: Texts, draws: Draws) -> Report:
    """Each token's mean (or sum) over what it sees: by a loop, a matrix product and a masked softmax."""
    (source,) = embed(spec, texts, draws)
    vectors, is_mean = source.vectors, spec.aggregate == "mean"
    found = average(
        vectors,
        method="matmul" if spec.method == "all" else spec.method,
        over=spec.over,
        aggregate=spec.aggregate,
        softmax_twice=spec.softmax_twice,
    )
    notes = ["Attention is message passing on a directed graph: a token takes from the tokens that it sees."]
    if spec.over == "past":
        notes.append("An encoder lets every token see all of them: over all.")
    if spec.softmax_twice:
        notes.append(
            "A mistake: softmax of finished weights gives hidden zeros weight, too: the future leaks in."
        )
    statistics: dict[str, Statistic] = {}
    if spec.method == "all":
        statistics["agreement"] = _agreement(spec, vectors, found.output)
        if not is_mean:
            notes.append("A softmax row sums to one, so that way averages and cannot sum.")
    if is_mean:
        once = average(vectors, method="softmax", over=spec.over).weights if spec.softmax_twice else None
        statistics |= _row_statistics(spec, vectors, once)
    tensors = {
        "input": named(vectors, "token", "dim"),
        "weights": named(found.weights.expand(*vectors.shape[:-2], -1, -1), "query", "key"),
        "output": named(found.output, "query", "dim"),
    }
    return build_report(spec, texts, tensors, statistics, notes)
