"""What is measured of attention: its scores before and after scaling, each row of weights, each key."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import Mask, NamedTensor, Tensors, later_keys


class ScoreMoments(Record):
    """Mean, unbiased variance, minimum and maximum of the scores of visible keys."""

    mean: float | None
    variance: float | None
    min: float | None = column(is_needed=False)
    max: float | None = column(is_needed=False)


class LambdaFactor(Record):
    """The factor on the second half of differential attention, and what it starts from."""

    lambda_init: float | None
    factor: float | None = column("lambda")


class ScoreRule(Record):
    """How a head's scores are computed from query · key, for readers who check them."""

    scale: float | None
    softcap: float | None
    sink: float | None


class LoopDifferences(Record):
    """The largest differences between what a loop gives and what the other ways give.

    None for sums, which a softmax cannot give.
    """

    loop_vs_matmul: float | None
    loop_vs_softmax: float | None = column(is_needed=False)


class RowQuantiles(Record):
    """The quantiles of a statistic over the queries of a sequence and a head."""

    statistic: str
    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    min: float | None
    p05: float | None
    p25: float | None
    median: float | None
    p75: float | None
    p95: float | None
    max: float | None


class ExtremeRow(Record):
    """A query where a statistic is among the lowest or the highest, of all sequences and heads."""

    statistic: str
    extreme: str
    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    query: int
    value: float | None


UNSCALED = ("scores", "second_scores")
"""The tensors of query · key: with their scale they are what a softmax takes."""


def inferred_mask(weights: NamedTensor, *, has_context: bool) -> Mask | None:
    """Weights from another tool come without a mask: a causal one where no query has weight on a later key.

    None where that says nothing.
    """
    *_, num_queries, num_keys = weights.values.shape
    later = later_keys(num_queries, num_keys)
    if has_context or num_queries != num_keys or np.nan_to_num(weights.values[..., later]).any():
        return None
    return Mask(causal=True)


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerStatistics(Result):
    """What is measured of one layer: the scores, and each row and key.

    `weights`, or the means of their blocks where they would be too large. Of differential attention the
    scores are those of the first half, `second_scores` those of the second. `score_rule` and the tensors of
    a model's layer are there where it is explained. Of very many rows there are the quantiles and extremes;
    `agreement` is that of the loop form.
    """

    weights: NamedTensor | None = tensor(num_axes=2)
    pooled_mean: NamedTensor | None = tensor(num_axes=2)
    scores: ScoreMoments | Records[ScoreMoments] | None = group(is_needed=False)
    scaled_scores: ScoreMoments | Records[ScoreMoments] | None = group(is_needed=False)
    second_scores: ScoreMoments | None = group(is_needed=False)
    second_scaled_scores: ScoreMoments | None = group(is_needed=False)
    differential: LambdaFactor | None = group(is_needed=False)
    score_rule: ScoreRule | None = group(is_needed=False)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
    quantiles: Records[RowQuantiles] | None = group(is_kept=False, is_needed=False)
    extremes: Records[ExtremeRow] | None = group(is_kept=False, is_needed=False)
    agreement: LoopDifferences | None = group(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class OutsideWeights(Result):
    """The statistics of weights that were computed elsewhere: none where a row is no distribution."""

    title: ClassVar[str] = "Attention weights"

    weights: NamedTensor | None = tensor(num_axes=2)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
    quantiles: Records[RowQuantiles] | None = group(is_kept=False, is_needed=False)
    extremes: Records[ExtremeRow] | None = group(is_kept=False, is_needed=False)
