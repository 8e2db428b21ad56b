"""Attention statistics: scores before and after scaling, rows of weights, and keys."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import Mask, NamedTensor, Tensors, later_keys


class ScoreMoments(Record):
    """The mean, unbiased variance, minimum and maximum of the scores of visible keys."""

    mean: float | None = column(about="Mean over the scores of visible keys")
    variance: float | None = column(about="Unbiased variance of the scores of visible keys")
    min: float | None = column(about="Smallest score of a visible key", is_needed=False)
    max: float | None = column(about="Largest score of a visible key", is_needed=False)


class LambdaFactor(Record):
    """The factor of differential attention."""

    lambda_init: float | None = column(label="initial λ", about="Initial value of the factor")
    factor: float | None = column(
        "lambda", label="λ", about="Factor on the second half of differential attention"
    )


class ScoreRule(Record):
    """The rule for a head's scores, computed from query · key, so that readers can check the numbers."""

    scale: float | None = column(about="Factor on query · key before the softmax")
    softcap: float | None = column(about="Bound of the scores: softcap · tanh(score / softcap)")
    sink: float | None = column(about="Score of the sink, which takes a share of the weight that no key gets")


class LoopDifferences(Record):
    """The largest differences between the loop's results and those of the faster methods."""

    loop_vs_matmul: float | None = column(about="Largest difference between the loop and a matrix product")
    loop_vs_softmax: float | None = column(
        about="Largest difference between the loop and a softmax; none for sums, which no softmax produces",
        is_needed=False,
    )


class RowQuantiles(Record):
    """Quantiles of a statistic over the queries of one sequence and head."""

    statistic: str = column(about="Statistic of the rows")
    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    min: float | None = column(about="Smallest value")
    p05: float | None = column(label="5 %", about="Value that 5 % of the queries lie below")
    p25: float | None = column(label="25 %", about="Value that 25 % of the queries lie below")
    median: float | None = column(about="Value that half of the queries lie below")
    p75: float | None = column(label="75 %", about="Value that 75 % of the queries lie below")
    p95: float | None = column(label="95 %", about="Value that 95 % of the queries lie below")
    max: float | None = column(about="Largest value")


class ExtremeRow(Record):
    """A query with one of the lowest or highest values of a statistic, across all sequences and heads."""

    statistic: str = column(about="Statistic of the rows")
    extreme: str = column(about="lowest or highest")
    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    query: int = column(about="Position of the query")
    value: float | None = column(about="The statistic of this query")


UNSCALED = ("scores", "second_scores")
"""The tensors of query · key: times their scale they are the input of a softmax."""


def inferred_mask(weights: NamedTensor, *, has_context: bool) -> Mask | None:
    """Return the mask of weights from another tool: causal if no query puts weight on a later key.

    Return None if the weights do not determine the mask.
    """
    *_, num_queries, num_keys = weights.values.shape
    later = later_keys(num_queries, num_keys)
    if has_context or num_queries != num_keys or np.nan_to_num(weights.values[..., later]).any():
        return None
    return Mask(causal=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerStatistics(Result):
    """Statistics of one layer: its scores, rows and keys.

    `weights` are replaced by block means if they would be too large. In differential attention, `scores`
    belong to the first half and `second_scores` to the second. `score_rule` and the tensors of a model's
    layer are set only when `explain` is on. If there are very many rows, they are summarised as quantiles and
    extremes. `agreement` holds the differences from the results of the loop.
    """

    weights: NamedTensor | None = tensor(num_axes=2)
    pooled_mean: NamedTensor | None = tensor(num_axes=2)
    scores: ScoreMoments | Records[ScoreMoments] | None = group(label="Scores", is_needed=False)
    scaled_scores: ScoreMoments | Records[ScoreMoments] | None = group(label="Scaled scores", is_needed=False)
    second_scores: ScoreMoments | None = group(label="Scores of the second half", is_needed=False)
    second_scaled_scores: ScoreMoments | None = group(
        label="Scaled scores of the second half", is_needed=False
    )
    differential: LambdaFactor | None = group(label="Differential attention", is_needed=False)
    score_rule: ScoreRule | None = group(label="Rule of the scores", is_needed=False)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
    quantiles: Records[RowQuantiles] | None = group(
        label="Quantiles over the queries", is_kept=False, is_needed=False
    )
    extremes: Records[ExtremeRow] | None = group(
        label="Queries with extreme values", is_kept=False, is_needed=False
    )
    agreement: LoopDifferences | None = group(label="Agreement with the loop", is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class OutsideWeights(Result):
    """Statistics of weights from another tool, without row statistics unless every row is a distribution."""

    title: ClassVar[str] = "Attention weights"

    weights: NamedTensor | None = tensor(num_axes=2)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
    quantiles: Records[RowQuantiles] | None = group(
        label="Quantiles over the queries", is_kept=False, is_needed=False
    )
    extremes: Records[ExtremeRow] | None = group(
        label="Queries with extreme values", is_kept=False, is_needed=False
    )
