"""What is measured of attention: its scores before and after scaling, each row of weights, each key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import MAPS, Mask, NamedTensor, Tensors, later_keys


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


def mask_of_averages(over: str, softmax_twice: bool) -> Mask:
    """The mask of averages over the past, or over all; a second softmax gives hidden keys weight, too."""
    return Mask(causal=over == "past" and not softmax_twice)


@dataclass(frozen=True)
class SampledSettings:
    """What the settings of attention with sampled weights say of its mask and scale."""

    scale: Literal["sqrt", "fourth-root", "none"] | float
    head_dim: Annotated[int, Field(gt=0)]
    causal: bool = False
    window: Annotated[int, Field(gt=0)] | None = None
    softcap: float | None = None
    temperature: Annotated[float, Field(gt=0)] = 1.0
    alibi: bool = False
    relative_bias: bool = False
    differential: bool = False

    @property
    def mask(self) -> Mask:
        """Which keys each query sees."""
        return Mask(self.causal, self.window)

    @property
    def factor(self) -> float | None:
        """What the softmax takes, divided by query · key; None where a softcap or a bias intervenes."""
        if self.softcap is not None or self.alibi or self.relative_bias:
            return None
        dim = self.head_dim // 2 if self.differential else self.head_dim
        named = {"sqrt": dim**-0.5, "fourth-root": (dim**-0.25) ** 2, "none": 1.0}
        scale: float = named[self.scale] if isinstance(self.scale, str) else self.scale
        return scale / self.temperature


@dataclass(frozen=True)
class AverageSettings:
    """What the settings of averages say of their mask."""

    over: Literal["past", "all"]
    softmax_twice: bool

    @property
    def mask(self) -> Mask:
        """Which keys each query sees."""
        return mask_of_averages(self.over, self.softmax_twice)


SAMPLED, AVERAGE = TypeAdapter(SampledSettings), TypeAdapter(AverageSettings)


def sampled_settings(spec: Mapping[str, object]) -> SampledSettings | None:
    """The settings that a saved report states; None where they are not those of sampled attention."""
    try:
        return SAMPLED.validate_python(spec)
    except ValidationError:
        return None


def stated_mask(spec: Mapping[str, object]) -> Mask | None:
    """The mask that a saved report's settings state; None where they do not, as those of a model."""
    if (sampled := sampled_settings(spec)) is not None:
        return sampled.mask
    try:
        return AVERAGE.validate_python(spec).mask
    except ValidationError:
        return None


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

    @classmethod
    def with_stated_facts(
        cls, tensors: Mapping[str, NamedTensor], spec: Mapping[str, object], *, has_context: bool
    ) -> dict[str, NamedTensor]:
        """See `Result.with_stated_facts`; a model's scores have no number where a key is hidden."""
        sampled = sampled_settings(spec)
        with_facts = {**tensors}
        for name, drawn in tensors.items():
            if drawn.axes[-2:] not in MAPS or not name.endswith(("scores", "weights", "mean", "max")):
                continue
            mask = None if sampled is None else sampled.mask
            if drawn.axes[-2:] != MAPS[0] and mask is not None and mask.window is not None:
                mask = None  # counts tokens, not blocks
            scores = tensors.get(name.replace("weights", "scores"))
            if mask is None and scores is not None and scores.values.shape == drawn.values.shape:
                mask = Mask.of(np.isfinite(scores.values))
            scale = None if sampled is None or name not in UNSCALED else sampled.factor
            with_facts[name] = replace(drawn, mask=mask, scale=scale)
        return with_facts


@dataclass(frozen=True, kw_only=True, repr=False)
class OutsideWeights(Result):
    """The statistics of weights that were computed elsewhere: none where a row is no distribution."""

    title: ClassVar[str] = "Attention weights"

    weights: NamedTensor | None = tensor(num_axes=2)
    rows: Tensors | None = group(is_needed=False)
    keys: Tensors | None = group(is_needed=False)
    quantiles: Records[RowQuantiles] | None = group(is_kept=False, is_needed=False)
    extremes: Records[ExtremeRow] | None = group(is_kept=False, is_needed=False)

    @classmethod
    def with_stated_facts(
        cls, tensors: Mapping[str, NamedTensor], spec: Mapping[str, object], *, has_context: bool
    ) -> dict[str, NamedTensor]:
        """See `Result.with_stated_facts`: what weights from another tool hide is inferred."""
        return {
            name: replace(drawn, mask=inferred_mask(drawn, has_context=has_context))
            if drawn.axes[-2:] == MAPS[0]
            else drawn
            for name, drawn in tensors.items()
        }
