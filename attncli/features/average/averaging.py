"""Averages of vectors over the past or over all tokens, computed by a loop, a matrix product or a softmax."""

from dataclasses import dataclass, replace
from math import nan
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Computed, ScoreRules, Visibility, Wanted
from attncli.core.mechanisms import (
    TokenVectors,
    TokenWeights,
    average_by_loop,
    averaging_weights,
    causal_mask,
    full_mask,
    softmax_averaging_weights,
)
from attncli.core.names import WEIGHT_STATISTICS
from attncli.records.attention import LoopDifferences
from attncli.records.columns import Records


@dataclass(frozen=True, kw_only=True)
class AverageForm:
    """Settings of an average: the method (loop, matmul, softmax, all), the visible tokens, and mean or sum.

    `softmax_twice` makes the mistake of applying a softmax to weights that are already normalised.
    """

    method: str = "matmul"
    over: str = "past"
    aggregate: str = "mean"
    softmax_twice: bool = False


class Average(NamedTuple):
    """The weights of an average, and the mean or sum of the tokens that each token sees."""

    weights: TokenWeights
    output: TokenVectors


def average(vectors: TokenVectors, form: AverageForm) -> Average:
    """Average by a loop, by a softmax of masked zeros or, by default, by a matrix product."""
    num_tokens, mean = vectors.shape[-2], form.aggregate == "mean"
    visible = (causal_mask if form.over == "past" else full_mask)(num_tokens, num_tokens)
    if form.method == "softmax":
        weights = softmax_averaging_weights(visible)
        weights = weights.softmax(dim=-1) if form.softmax_twice else weights
    else:
        weights = averaging_weights(visible, mean=mean)
    if form.method == "loop":
        return Average(weights, average_by_loop(vectors, visible.to(vectors.device), mean=mean))
    return Average(weights, weights.to(vectors.device) @ vectors)


def averaging_statistics(
    vectors: Float[Tensor, "text 1 token dim"], form: AverageForm, *, top_k: int
) -> Computed:
    """Row statistics of attention whose scores are zero; with `softmax_twice`, the weights are the scores."""
    zeros, rules = torch.zeros_like(vectors[..., :1]), ScoreRules()
    if form.softmax_twice:
        once = average(vectors, replace(form, softmax_twice=False)).weights
        rules = ScoreRules(bias=once[None, None].to(vectors))
    num_tokens, causal = vectors.shape[-2], form.over == "past" and not form.softmax_twice
    visibility = Visibility(num_tokens, num_tokens, causal=causal)
    layer = AttentionLayer(zeros, zeros, vectors, visibility, scale=1.0, rules=rules)
    wanted = Wanted(rows=WEIGHT_STATISTICS, top_k=min(top_k, num_tokens), received_mass=True)
    return attend(layer, wanted)


def differences_from_loop(
    vectors: TokenVectors, by_matrix: TokenVectors, form: AverageForm, *, by_text: bool = False
) -> LoopDifferences | Records[LoopDifferences]:
    """The largest |loop - matmul| and |loop - softmax|, or one row of these differences per text.

    A softmax cannot compute sums, so `loop_vs_softmax` is None for sums.
    """
    looped, by_softmax = (
        average(vectors, replace(form, method=method, softmax_twice=False)).output
        for method in ("loop", "softmax")
    )
    difference = (looped - by_softmax).abs() if form.aggregate == "mean" else torch.full_like(looped, nan)
    differences = {"loop_vs_matmul": (looped - by_matrix).abs(), "loop_vs_softmax": difference}
    if by_text:
        maxima = {name: each.flatten(1).amax(dim=1) for name, each in differences.items()}
        return LoopDifferences.table(
            **{name: per_text.numpy(force=True) for name, per_text in maxima.items()}
        )
    return LoopDifferences.single(**{name: each.max().item() for name, each in differences.items()})
