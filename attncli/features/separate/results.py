"""Results of `attn separate`: heads that separate two groups of texts, and detectors on held-out groups."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.values import NamedTensor


class HeldOutAuroc(Record):
    """The sparse regression over all heads on held-out groups, and the best baseline that ignores attention.

    `auroc` is the mean over the groups with its 95 % interval, and `lowest` is the AUROC of the worst group.
    `difference` is `auroc` minus the AUROC of the `baseline`, on the same texts. `hits` and `false_alarms`
    are the shares of positive and of negative held-out texts that the regression calls positive.
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
    """A detector, with its mean AUROC over held-out groups; `kind` is attention or baseline.

    The interval covers the texts of these groups. `choosing` is its AUROC on the texts that it was fitted to,
    and `num_features` is its number of features when fitted to all texts. `difference` is its AUROC minus the
    AUROC of the best baseline.
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

    `p_value` is corrected for the number of heads and statistics by permuting labels. `effect_size` is
    Hedges' g.
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
    """A head, with its statistic whose AUROC is farthest from one half; see `SeparatingFeature`."""

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
    """The sparse regression's prediction for a held-out text, which is positive above the threshold.

    `margin` is the score minus the threshold, in standard deviations of the training scores. `digest` is the
    beginning of the SHA-256 of the text's words, by which a detector recognises its training texts.
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
    """A detector that was fitted to all texts, with everything that is needed to apply it.

    `digest` is the SHA-256 of the model's weights, and `measured_on` is the name of the texts. A text whose
    score is above the threshold is called `positive`.
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
    """A feature's weight in a detector: score = sum w (x - mean) / scale + intercept."""

    detector: str
    stack: str
    layer: int
    head: int
    statistic: str
    coefficient: float
    mean: float
    scale: float


class RocOfGroup(Record):
    """The ROC curve of a detector on a group that it was not fitted to: both rates at fixed points.

    `curve` is the name of the group and, for a baseline, a comma and the detector; the first curve is chance.
    """

    curve: str
    detector: str
    group: str
    false_positive_rate: list[float]
    true_positive_rate: list[float]


class MapOfText(NamedTuple):
    """A head's weights in a text: the text's line, name and tokens, and the weights (query, key)."""

    line: int
    name: str
    tokens: tuple[str, ...]
    weights: NamedTensor


@dataclass(frozen=True, kw_only=True, repr=False)
class SeparatedTexts(Result):
    """Heads that separate two groups of texts, tested on held-out groups.

    `held_out` has the regression over all heads; `detectors` and `by_group` have every detector;
    `predictions` has the regression's prediction for each text; and `curves` has its ROC curves and those of
    the best baseline. `heads` has one row per head, `strongest` has the best features, and `features` has one
    row per head and statistic. `fitted` and `coefficients` describe the detectors fitted to all texts, which
    `attncli.read_detector` opens. `weights` is the map of the strongest head in the misclassified text
    farthest from the threshold, and `tokens` has that text's tokens; `maps` has the maps of the first
    misclassified texts.
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
        """Add the maps for pages; see `Result.in_report`."""
        result = super().in_report(tensors)
        return replace(result, maps=self.maps) if isinstance(result, SeparatedTexts) else result

    def best_baseline(self) -> DetectorAuroc:
        """The best of the detectors that ignore attention."""
        baselines = [row for row in self.detectors if row.kind == BASELINE]
        return max(baselines, key=lambda row: row.auroc or 0.0)

    @property
    def attention_adds(self) -> bool:
        """True if the interval of the regression's difference from the best baseline is above 0."""
        lower = self.held_out.difference_lower
        return lower is not None and lower > 0


ATTENTION, BASELINE = "attention", "baseline"


class MeasuredDetector(Record):
    """A detector's performance on labelled texts: its AUROC with DeLong's 95 % interval, and its rates of
    hits and false alarms.

    Texts that all have the same label have only one of the rates.
    """

    auroc: float | None = column(is_needed=False)
    lower: float | None = column(is_needed=False)
    upper: float | None = column(is_needed=False)
    hits: float | None = column(is_needed=False)
    false_alarms: float | None = column(is_needed=False)


class AppliedScore(Record):
    """A detector's prediction for a text: `predicted` is a value of the label, and `margin` is the score
    minus the threshold.
    """

    text: int
    id: str | None
    predicted: str
    score: float
    margin: float
    start: str


@dataclass(frozen=True, kw_only=True, repr=False)
class AppliedDetector(Result):
    """The predictions of a fitted detector and, for labelled texts, its performance in `measured`."""

    compares: ClassVar[bool] = True

    measured: MeasuredDetector = group(is_needed=False)
    scores: Records[AppliedScore] = group(is_kept=False)
    num_texts: int = number("texts")
    num_positive: int = number("texts")
    notes: tuple[str, ...] = ()
