"""Results of `attn separate`: heads that separate two groups of texts, and detectors on held-out groups."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from attncli.records.columns import Record, Records, Result, column, group, number, tensor
from attncli.records.meanings import AUROC
from attncli.records.values import NamedTensor


class HeldOutAuroc(Record, shared=AUROC):
    """The sparse regression over all heads on held-out groups, and the best baseline without attention."""

    auroc: float | None = column(
        label="AUROC", about="Mean AUROC of the sparse regression over the held-out groups"
    )
    lower: float | None
    upper: float | None
    lowest: float | None
    baseline: float | None = column(about="AUROC of the best baseline, which ignores attention")
    difference: float | None
    difference_lower: float | None
    difference_upper: float | None
    hits: float | None
    false_alarms: float | None


class DetectorAuroc(Record, shared=AUROC):
    """A detector on held-out groups; the interval covers the texts of these groups."""

    detector: str = column(about="Name of the detector")
    kind: str = column(about="attention, or baseline for a detector that ignores attention")
    auroc: float | None = column(label="AUROC", about="Mean AUROC over the held-out groups")
    lower: float | None
    upper: float | None
    lowest: float | None
    choosing: float | None = column(about="AUROC on the texts that the detector was fitted to")
    num_features: int = column(label="features", about="Number of features when fitted to all texts")
    difference: float | None
    difference_lower: float | None
    difference_upper: float | None


class GroupAuroc(Record, shared=AUROC):
    """The AUROC of a detector on a group that it was not fitted to, with DeLong's 95 % interval."""

    detector: str = column(about="Name of the detector")
    group: str = column(about="Held-out group")
    texts: int = column(about="Number of texts in the group")
    positive: int = column(about="Number of positive texts in the group")
    auroc: float
    lower: float | None
    upper: float | None


class SeparatingFeature(Record, shared=AUROC):
    """A statistic of a head over all texts, with its AUROC and DeLong's 95 % interval."""

    stack: str
    layer: int
    head: int
    statistic: str = column(about="Statistic of the head")
    auroc: float
    lower: float | None
    upper: float | None
    p_value: float = column(
        about="p-value by permuting labels, corrected for the number of heads and statistics"
    )
    effect_size: float | None = column(
        label="effect size g", about="Hedges' g: difference of the means in standard deviations"
    )


class SeparatingHead(Record, shared=AUROC):
    """A head, with its statistic whose AUROC is farthest from one half; see `SeparatingFeature`."""

    stack: str
    layer: int = column(is_kept=False)
    head: int = column(is_kept=False)
    statistic: str = column(about="Statistic of the head whose AUROC is farthest from one half")
    auroc: float | None
    lower: float | None
    upper: float | None
    p_value: float | None = column(
        about="p-value by permuting labels, corrected for the number of heads and statistics"
    )
    effect_size: float | None = column(
        label="effect size g", about="Hedges' g: difference of the means in standard deviations"
    )


class TextScore(Record):
    """The sparse regression's prediction for a held-out text.

    By `digest`, a detector recognises its training texts.
    """

    text: int = column(about="Number of the text")
    id: str | None = column(about="Id of the text")
    group: str = column(about="Held-out group of the text")
    label: str = column(about="The text's label")
    predicted: str = column(about="Label that the regression predicts")
    margin: float = column(about="Score minus the threshold, in standard deviations of the training scores")
    is_right: int = column(label="right", about="1 if the prediction is right, else 0")
    start: str = column(about="Beginning of the text")
    digest: str = column(about="Beginning of the SHA-256 of the text's words", is_needed=False)


class FittedDetector(Record):
    """A detector that was fitted to all texts, with everything that is needed to apply it."""

    detector: str = column(about="Name of the detector")
    model: str = column(about="Name of the model")
    digest: str = column(about="SHA-256 of the model's weights")
    positive: str = column(about="Label of a text whose score is above the threshold")
    negative: str = column(about="Label of all other texts")
    threshold: float = column(about="Threshold of the score")
    intercept: float = column(about="Intercept of the score")
    penalty: float = column(about="Inverse strength C of the regression's penalty; 0 without a regression")
    parts: str = column(about="Parts of the texts that were measured")
    num_texts: int = column(label="texts", about="Number of texts that it was fitted to")
    measured_on: str = column(about="Name of these texts")


class DetectorWeight(Record):
    """A feature's weight in a detector: score = sum w (x - mean) / scale + intercept."""

    detector: str = column(about="Name of the detector")
    stack: str
    layer: int
    head: int
    statistic: str = column(about="Statistic of the head")
    coefficient: float = column(about="Weight w of the feature")
    mean: float = column(about="Mean of the feature, which is subtracted")
    scale: float = column(about="Standard deviation of the feature, by which it is divided")


class RocOfGroup(Record):
    """The ROC curve of a detector on a group that it was not fitted to."""

    curve: str = column(about="Group and, for a baseline, the detector; the first curve is chance")
    detector: str = column(about="Name of the detector")
    group: str = column(about="Held-out group")
    false_positive_rate: list[float] = column(
        about="Shares of negative texts that are called positive, at fixed points"
    )
    true_positive_rate: list[float] = column(about="Shares of positive texts that are called positive")


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

    held_out: HeldOutAuroc = group(label="On held-out groups")
    num_texts: int = number("texts", label="texts", about="Number of texts")
    num_positive: int = number("texts", label="positive texts", about="Number of positive texts")
    num_groups: int = number("texts", label="groups", about="Number of groups that were held out in turn")
    num_features: int = number("texts", label="features", about="Number of features: statistics of heads")
    num_permutations: int = number(
        "texts", label="permutations", about="Number of permutations of the labels"
    )
    detectors: Records[DetectorAuroc] = group(label="Detectors", is_kept=False)
    by_group: Records[GroupAuroc] = group(label="Detectors by group", is_kept=False)
    strongest: Records[SeparatingFeature] = group(label="Strongest statistics", is_kept=False)
    wrong: Records[TextScore] = group(label="Misclassified texts", may_be_empty=True, is_kept=False)
    heads: Records[SeparatingHead] = group(label="Heads")
    features: Records[SeparatingFeature] = group(label="Statistics of heads", is_kept=False)
    predictions: Records[TextScore] = group(label="Predictions", is_kept=False)
    fitted: Records[FittedDetector] = group(label="Fitted detectors", is_kept=False)
    coefficients: Records[DetectorWeight] = group(
        label="Coefficients of the detectors", may_be_empty=True, is_kept=False
    )
    curves: Records[RocOfGroup] = group(label="ROC curves", is_kept=False)
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


class MeasuredDetector(Record, shared=AUROC):
    """A detector's performance on labelled texts, with DeLong's 95 % interval.

    Texts that all have the same label have only one of the rates.
    """

    auroc: float | None = column(is_needed=False)
    lower: float | None = column(is_needed=False)
    upper: float | None = column(is_needed=False)
    hits: float | None = column(is_needed=False)
    false_alarms: float | None = column(is_needed=False)


class AppliedScore(Record):
    """A detector's prediction for a text."""

    text: int = column(about="Number of the text")
    id: str | None = column(about="Id of the text")
    predicted: str = column(about="Label that the detector predicts")
    score: float = column(about="Score of the text")
    margin: float = column(about="Score minus the threshold")
    start: str = column(about="Beginning of the text")


@dataclass(frozen=True, kw_only=True, repr=False)
class AppliedDetector(Result):
    """The predictions of a fitted detector and, for labelled texts, its performance in `measured`."""

    compares: ClassVar[bool] = True

    measured: MeasuredDetector = group(label="Performance", is_needed=False)
    scores: Records[AppliedScore] = group(label="Predictions", is_kept=False)
    num_texts: int = number("texts", label="texts", about="Number of texts")
    num_positive: int = number(
        "texts",
        label="positive texts",
        about="Number of texts that are labelled or, without labels, called positive",
    )
    notes: tuple[str, ...] = ()
