"""Classic mistakes, and the metrics that expose them."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import Mask, NamedTensor


class MistakeLine(Record):
    """A mistake in a few words, with the wrong and the right value of the metric that exposes it."""

    pitfall: str
    figure: str
    wrong: float | None
    right: float | None
    mistake: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Mistakes(Result):
    """All the classic mistakes, one per line."""

    compares: ClassVar[bool] = True

    pitfalls: Records[MistakeLine] = group()


class MistakeMetrics(Record):
    """Metrics that expose mistakes; each mistake has some of these metrics."""

    weight_on_future: float | None = column(is_needed=False)
    first_row_on_itself: float | None = column(is_needed=False)
    score_variance: float | None = column(is_needed=False)
    mean_max_weight: float | None = column(is_needed=False)
    difference_from_input: float | None = column(is_needed=False)
    rows_of_one_token: int = column(is_needed=False)
    rows_named_wrongly: int = column(is_needed=False)
    labels: int = column(is_needed=False)
    row_sum_error: float | None = column(is_needed=False)
    column_sum_error: float | None = column(is_needed=False)
    smallest_row_sum: float | None = column(is_needed=False)


class GrownScores(Record):
    """The growth of unscaled (wrong) and scaled (right) scores with the head size."""

    head_dim: int
    wrong_score_variance: float | None
    right_score_variance: float | None
    wrong_mean_max_weight: float | None
    right_mean_max_weight: float | None


class LabelledRow(Record):
    """A row of weights with wrong and right labels, such as `cat → street`."""

    row: str
    wrong: str
    right: str
    weight: float | None


def masks_of_mistake(name: str) -> tuple[Mask, Mask]:
    """Return the hidden keys, wrong and right; a second softmax gives some weight to hidden keys."""
    causal = Mask(causal=True)
    return {"softmax-twice": (Mask(), causal), "late-mask": (causal, causal)}.get(name, (Mask(), Mask()))


@dataclass(frozen=True, kw_only=True, repr=False)
class MistakeComparison(Result):
    """One mistake: the same metrics for the wrong and the correct computation, and further tables.

    `weights` is set if both computations have the same weights.
    """

    compares: ClassVar[bool] = True

    weights: NamedTensor | None = tensor(num_axes=2)
    wrong: MistakeMetrics = group()
    right: MistakeMetrics = group()
    growth: Records[GrownScores] | None = group(is_needed=False)
    readings: Records[LabelledRow] | None = group(is_needed=False)
