"""Classic mistakes, and the metrics that expose them."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import Mask, NamedTensor


class MistakeLine(Record):
    """A mistake, with the metric that exposes it."""

    pitfall: str = column(about="Name of the mistake")
    figure: str = column(about="Metric that exposes it")
    wrong: float | None = column(about="Value of the wrong computation")
    right: float | None = column(about="Value of the correct computation")
    mistake: str = column(about="The mistake in a few words")


@dataclass(frozen=True, kw_only=True, repr=False)
class Mistakes(Result):
    """All the classic mistakes, one per line."""

    compares: ClassVar[bool] = True

    pitfalls: Records[MistakeLine] = group(label="Mistakes")


class MistakeMetrics(Record):
    """Metrics that expose mistakes; each mistake has some of these metrics."""

    weight_on_future: float | None = column(
        about="Weight of a row on later keys, mean over the rows", is_needed=False
    )
    first_row_on_itself: float | None = column(about="Weight of the first query on itself", is_needed=False)
    score_variance: float | None = column(about="Unbiased variance of all scores", is_needed=False)
    mean_max_weight: float | None = column(
        about="Mean over the rows of the largest weight: 1 for one-hot rows", is_needed=False
    )
    difference_from_input: float | None = column(
        about="Largest difference of the merged heads from the input", is_needed=False
    )
    rows_of_one_token: int = column(
        about="Number of merged rows that come from their own token alone", is_needed=False
    )
    rows_named_wrongly: int = column(about="Number of rows with a wrong label", is_needed=False)
    labels: int = column(about="Number of labels", is_needed=False)
    row_sum_error: float | None = column(about="Largest difference of a row's sum from 1", is_needed=False)
    column_sum_error: float | None = column(
        about="Largest difference of a column's sum from 1", is_needed=False
    )
    smallest_row_sum: float | None = column(about="Smallest sum of a row", is_needed=False)


class GrownScores(Record):
    """The growth of unscaled (wrong) and scaled (right) scores with the head size."""

    head_dim: int = column(about="Dimension of queries and keys")
    wrong_score_variance: float | None = column(about="Variance of the unscaled scores")
    right_score_variance: float | None = column(about="Variance of the scaled scores")
    wrong_mean_max_weight: float | None = column(about="Mean largest weight for unscaled scores")
    right_mean_max_weight: float | None = column(about="Mean largest weight for scaled scores")


class LabelledRow(Record):
    """A row of weights with wrong and right labels, such as `cat → street`."""

    row: str = column(about="Number of the row")
    wrong: str = column(about="Query and strongest key with the wrong labels")
    right: str = column(about="Query and strongest key with the right labels")
    weight: float | None = column(about="Weight on this key")


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
    wrong: MistakeMetrics = group(label="Wrong")
    right: MistakeMetrics = group(label="Right")
    growth: Records[GrownScores] | None = group(label="Growth with the head dimension", is_needed=False)
    readings: Records[LabelledRow] | None = group(label="Rows with labels", is_needed=False)
