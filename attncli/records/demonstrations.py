"""What the lessons around attention find: scaling, normalisation, and classic mistakes."""

from collections.abc import Mapping
from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import Mask, NamedTensor, with_masks


class ScoreVariances(Record):
    """The variances of queries, keys and their scores, before and after scaling, for a size of head."""

    head_dim: int
    query: float | None = column(is_needed=False)
    key: float | None = column(is_needed=False)
    raw_scores: float | None = column(is_needed=False)
    scaled_scores: float | None = column(is_needed=False)


class SharpenedSoftmax(Record):
    """softmax(factor logits), how peaked it is, and the Frobenius norm of its Jacobian."""

    factor: float
    softmax: list[float]
    max_weight: float | None = column(is_needed=False)
    entropy: float | None = column(unit="nats", is_needed=False)
    gradient_norm: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaleEffects(Result):
    """How scores grow with the size of a head, and how a softmax of larger `logits` saturates."""

    logits: NamedTensor = tensor(num_axes=1, is_needed=True)
    variance: Records[ScoreVariances] = group(is_bare_alone=True)
    sharpness: Records[SharpenedSoftmax] = group()


class FirstMoments(Record):
    """Mean and unbiased std of feature 0 over the batch, and of example 0 over its features."""

    feature0_mean: float | None
    feature0_std: float | None
    example0_mean: float | None
    example0_std: float | None


class NormDifferences(Record):
    """The largest differences from torch's own layers; None where these divide by another number."""

    batch_norm: float | None = column(is_needed=False)
    batch_norm_eval: float | None = column(is_needed=False)
    layer_norm: float | None = column(is_needed=False)
    rms_norm: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NormEffects(Result):
    """What each norm makes of the first feature and the first example."""

    input: FirstMoments = group()
    batch_norm: FirstMoments | None = group(is_needed=False)
    batch_norm_eval: FirstMoments | None = group(is_needed=False)
    layer_norm: FirstMoments | None = group(is_needed=False)
    rms_norm: FirstMoments | None = group(is_needed=False)
    agreement_with_torch: NormDifferences | None = group(is_needed=False)

    def states(self) -> dict[str, FirstMoments]:
        """The data before, and after each norm that there is."""
        states = {
            "input": self.input,
            "batch_norm": self.batch_norm,
            "batch_norm_eval": self.batch_norm_eval,
            "layer_norm": self.layer_norm,
            "rms_norm": self.rms_norm,
        }
        return {name: moments for name, moments in states.items() if moments is not None}


class MistakeLine(Record):
    """A mistake in short, and the metric that exposes it, wrong and right."""

    pitfall: str
    figure: str
    wrong: float | None
    right: float | None
    mistake: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Mistakes(Result):
    """Every classic mistake in a line."""

    pitfalls: Records[MistakeLine] = group()


class MistakeMetrics(Record):
    """What exposes mistakes, each of those that have it."""

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
    """How scores that are not scaled (wrong) and that are (right) grow with the size of a head."""

    head_dim: int
    wrong_score_variance: float | None
    right_score_variance: float | None
    wrong_mean_max_weight: float | None
    right_mean_max_weight: float | None


class LabelledRow(Record):
    """What a row of weights says with wrong and with right labels: `cat → street`."""

    row: str
    wrong: str
    right: str
    weight: float | None


def masks_of_mistake(name: str) -> tuple[Mask, Mask]:
    """Which keys have no weight, wrong and right: a second softmax gives the hidden ones some, too."""
    causal = Mask(causal=True)
    return {"softmax-twice": (Mask(), causal), "late-mask": (causal, causal)}.get(name, (Mask(), Mask()))


@dataclass(frozen=True, kw_only=True, repr=False)
class MistakeComparison(Result):
    """One mistake: the same metrics of the wrong and of the right computation, and further tables.

    `weights` are there where both have the same.
    """

    weights: NamedTensor | None = tensor(num_axes=2)
    wrong: MistakeMetrics = group()
    right: MistakeMetrics = group()
    growth: Records[GrownScores] | None = group(is_needed=False)
    readings: Records[LabelledRow] | None = group(is_needed=False)

    @classmethod
    def with_stated_facts(
        cls, tensors: Mapping[str, NamedTensor], spec: Mapping[str, object], *, has_context: bool
    ) -> dict[str, NamedTensor]:
        """See `Result.with_stated_facts`."""
        wrong, right = masks_of_mistake(str(spec.get("pitfall")))
        pairs = {f"wrong_{name}": wrong for name in OF_MAPS} | {f"right_{name}": right for name in OF_MAPS}
        return with_masks(tensors, {"weights": right} | pairs)


OF_MAPS = ("weights", "scores")
