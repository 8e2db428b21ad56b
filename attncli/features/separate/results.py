"""Which heads tell two groups of texts apart, and how well detectors do on groups that were left out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.values import NamedTensor


class HeldOutAuroc(Record):
    """The sparse regression over all heads on groups left out, beside the best of what needs no attention.

    `auroc` is the mean over the groups with its 95 % interval, `lowest` that of the worst of them.
    `difference` is by how much it is above the `baseline`, on the same texts. `hits` and `false_alarms` are
    the shares of positive and of negative texts of groups left out that it calls positive.
    """

    auroc: float | None
    lower: float | None
    upper: float | None
    lowest: float | None
    baseline: float | None
    difference: float | None
    difference_lower: float | None
    difference_upper: float | None
    hits: float | None
    false_alarms: float | None


class DetectorAuroc(Record):
    """A detector: `kind` is attention or baseline. Its AUROC on groups left out, mean over them.

    The interval is over texts, of these groups. `choosing` is its AUROC on the texts that it was fitted to,
    `num_features` how many features it has, fitted to all texts. `difference` is to the best baseline.
    """

    detector: str
    kind: str
    auroc: float | None
    lower: float | None
    upper: float | None
    lowest: float | None
    choosing: float | None
    num_features: int
    difference: float | None
    difference_lower: float | None
    difference_upper: float | None


class GroupAuroc(Record):
    """The AUROC of a detector on a group that it was not fitted to, with DeLong's 95 % interval."""

    detector: str
    group: str
    texts: int
    positive: int
    auroc: float
    lower: float | None
    upper: float | None


class SeparatingFeature(Record):
    """A statistic of a head over all texts: P(positive > negative), with DeLong's 95 % interval.

    `p_value` is corrected for all heads and statistics: labels are permuted. `effect_size` is Hedges' g.
    """

    stack: str
    layer: int
    head: int
    statistic: str
    auroc: float
    lower: float | None
    upper: float | None
    p_value: float
    effect_size: float | None


class SeparatingHead(Record):
    """A head with that of its statistics whose AUROC is the farthest from a half; see `SeparatingFeature`."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    statistic: str
    auroc: float | None
    lower: float | None
    upper: float | None
    p_value: float | None
    effect_size: float | None


class TextScore(Record):
    """What the sparse regression says of a text of a group left out: positive above the threshold.

    `margin` is the score less the threshold, in standard deviations of the scores that it was fitted to.
    `digest` is the beginning of the SHA-256 of its words, by which a detector knows it again.
    """

    text: int
    id: str | None
    group: str
    label: str
    predicted: str
    margin: float
    is_right: int
    start: str
    digest: str = column(is_needed=False)


class FittedDetector(Record):
    """A detector that was fitted to all texts: what it is applied to another text with.

    `digest` is the SHA-256 of the model's weights, `measured_on` says which texts. A text with a score above
    the threshold is called `positive`.
    """

    detector: str
    model: str
    digest: str
    positive: str
    negative: str
    threshold: float
    intercept: float
    penalty: float
    parts: str
    num_texts: int
    measured_on: str


class DetectorWeight(Record):
    """The weight of a feature in a detector: score = sum w (x - mean) / scale + intercept."""

    detector: str
    stack: str
    layer: int
    head: int
    statistic: str
    coefficient: float
    mean: float
    scale: float


class RocOfGroup(Record):
    """The ROC curve of a detector on a group that it was not fitted to: both rates, at the same places.

    `curve` is the group, and behind a comma the detector where that is a baseline; the first is chance.
    """

    curve: str
    detector: str
    group: str
    false_positive_rate: list[float]
    true_positive_rate: list[float]


class MapOfText(NamedTuple):
    """What a head looks at in a text: its line, its name, its tokens, and the weights (query, key)."""

    line: int
    name: str
    tokens: tuple[str, ...]
    weights: NamedTensor


@dataclass(frozen=True, kw_only=True, repr=False)
class SeparatedTexts(Result):
    """Which heads tell two groups of texts apart, and what holds on groups that were left out.

    `held_out` is the regression over all heads, `detectors` and `by_group` every detector, `predictions` what
    the regression says of each text, `curves` its ROC curves and those of the best baseline. `heads` has one
    row per head, `strongest` the first features, `features` one row per head and statistic. `fitted` and
    `coefficients` are the detectors fitted to all texts, which `attncli.read_detector` opens. `weights` is
    what the strongest head looks at in the text that is misclassified by most, whose `tokens` these are;
    `maps` has it of the first of these texts.
    """

    compares: ClassVar[bool] = True

    held_out: HeldOutAuroc = group()
    num_texts: int = number("texts")
    num_positive: int = number("texts")
    num_groups: int = number("texts")
    num_features: int = number("texts")
    num_permutations: int = number("texts")
    detectors: Records[DetectorAuroc] = group(is_kept=False)
    by_group: Records[GroupAuroc] = group(is_kept=False)
    strongest: Records[SeparatingFeature] = group(is_kept=False)
    wrong: Records[TextScore] = group(may_be_empty=True, is_kept=False)
    heads: Records[SeparatingHead] = group()
    features: Records[SeparatingFeature] = group(is_kept=False)
    predictions: Records[TextScore] = group(is_kept=False)
    fitted: Records[FittedDetector] = group(is_kept=False)
    coefficients: Records[DetectorWeight] = group(may_be_empty=True, is_kept=False)
    curves: Records[RocOfGroup] = group(is_kept=False)
    weights: NamedTensor | None = tensor(num_axes=2)
    tokens: tuple[str, ...] = ()
    maps: tuple[MapOfText, ...] = ()
    shared: str | None = None
    notes: tuple[str, ...] = ()

    def in_report(self, tensors: Mapping[str, NamedTensor]) -> Result:
        """See `Result.in_report`: with the maps, for pages."""
        result = super().in_report(tensors)
        return replace(result, maps=self.maps) if isinstance(result, SeparatedTexts) else result

    def of_baseline(self) -> DetectorAuroc:
        """The best of the detectors that need no attention."""
        baselines = [row for row in self.detectors if row.kind == BASELINE]
        return max(baselines, key=lambda row: row.auroc or 0.0)

    @property
    def attention_adds(self) -> bool:
        """Whether the regression over all heads is above the best baseline, by its interval."""
        lower = self.held_out.difference_lower
        return lower is not None and lower > 0


ATTENTION, BASELINE = "attention", "baseline"


class MeasuredDetector(Record):
    """How a detector does on texts with labels: DeLong's 95 % interval, hits and false alarms as rates.

    Texts of one label have only one of these rates.
    """

    auroc: float | None = column(is_needed=False)
    lower: float | None = column(is_needed=False)
    upper: float | None = column(is_needed=False)
    hits: float | None = column(is_needed=False)
    false_alarms: float | None = column(is_needed=False)


class AppliedScore(Record):
    """What a detector says of a text: `predicted` is a value of the label, `margin` beyond the threshold."""

    text: int
    id: str | None
    predicted: str
    score: float
    margin: float
    start: str


@dataclass(frozen=True, kw_only=True, repr=False)
class AppliedDetector(Result):
    """What a fitted detector says of texts, and `measured`, how well, where these have labels."""

    compares: ClassVar[bool] = True

    measured: MeasuredDetector = group(is_needed=False)
    scores: Records[AppliedScore] = group(is_kept=False)
    num_texts: int = number("texts")
    num_positive: int = number("texts")
    notes: tuple[str, ...] = ()
