"""Apply a fitted detector to texts; only the layers that the detector needs are measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import NO_TEXT, UserError
from attncli.features.separate.auroc import call_rates, separation
from attncli.features.separate.detectors import LinearDetector
from attncli.features.separate.labelled_texts import LabelledReader
from attncli.features.separate.results import (
    AppliedDetector,
    AppliedScore,
    DetectorWeight,
    FittedDetector,
    MeasuredDetector,
    SeparatingFeature,
)
from attncli.features.separate.separation import START
from attncli.features.separate.text_features import FeatureRun, HeadFeature
from attncli.measure.masks import layer_mask
from attncli.models.capture import capture
from attncli.models.labelled_files import PARTS, LabelledText
from attncli.models.layers import CapturedLayer, StopCapture
from attncli.models.loading import in_use
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.text_files import ManyTexts, TextLine
from attncli.records.columns import Records
from attncli.records.token_ids import text_or_ids
from attncli.records.values import NamedTensor

MODEL = (
    "model: must be the model that the detector was fitted to, {fitted} (got {name}, whose weights differ)"
)


@dataclass(frozen=True)
class Detector:
    """A detector and its model: `detector.score("a text")` stops the model after the last needed layer.

    A text is positive if its score is above `threshold`.
    """

    pretrained: Pretrained
    fitted: FittedDetector
    weights: Records[DetectorWeight]
    held_out: str = ""
    """The detector's performance on held-out groups, as a sentence."""
    fitted_to: frozenset[str] = frozenset()
    """The digests of the training texts; empty if the report has no digests."""

    @property
    def threshold(self) -> float:
        """Texts with a score above this value are positive."""
        return self.fitted.threshold

    @cached_property
    def _features(self) -> list[HeadFeature]:
        return [HeadFeature(row.stack, row.layer, row.head, row.statistic) for row in self.weights]

    @cached_property
    def _linear(self) -> LinearDetector:
        weights, means, scales = (
            torch.from_numpy(self.weights.numbers(name)) for name in ("coefficient", "mean", "scale")
        )
        places = range(len(self.weights))
        return LinearDetector(places, weights, means, scales, self.fitted.intercept, self.threshold)

    @cached_property
    def _reader(self) -> LabelledReader:
        return LabelledReader(self.pretrained)

    def score(self, text: object) -> float:
        """Score a string, or a mapping with the parts that the detector was fitted to.

        Raises UserError for other types or parts, and for a text that the model cannot read.
        """
        parts = _text_parts(text)
        with in_use(self.pretrained) as pretrained:
            labelled = LabelledText(TextLine(1, parts["text"]), parts)
            self.check_parts(labelled)
            return float(self.scores(pretrained, [self._reader.read(labelled)])[0])

    def check_parts(self, text: LabelledText) -> None:
        """Raise UserError if a text's parts differ from those that the detector was fitted to."""
        needed = self.fitted.parts.split(",")
        if text.kinds != needed:
            got = " and ".join(text.kinds)
            raise UserError(
                f"texts: must have the parts that the detector was fitted to: {' and '.join(needed)} (got "
                f"{got})"
            )

    def scores(self, pretrained: Pretrained, readings: Sequence[Reading]) -> Float[Tensor, " text"]:
        """The scores of texts of equal length."""
        layers = {(feature.stack, feature.layer) for feature in self._features}
        if not layers:
            return torch.full((len(readings),), self.fitted.intercept, dtype=torch.float64)
        run = FeatureRun(pretrained, layers=layers).go(readings)
        numbers = run.numbers[:, self._places(run.features, pretrained.name)].double()
        lacking = numbers.isnan() | numbers.isinf()
        # A text that lacks a statistic gets the mean of that statistic.
        return self._linear.scores(torch.where(lacking, self._linear.means, numbers))

    def _places(self, features: tuple[HeadFeature, ...], name: str) -> list[int]:
        """The columns of the detector's features in a run's table, cached by feature tuple."""
        if id(features) not in self._places_by_run:
            places = {feature: place for place, feature in enumerate(features)}
            missing = next((feature for feature in self._features if feature not in places), None)
            if missing is not None:
                raise UserError(
                    f"texts: the detector needs {missing.name}, which {name} does not have for these texts"
                )
            self._places_by_run[id(features)] = features, [places[feature] for feature in self._features]
        return self._places_by_run[id(features)][1]

    @cached_property
    def _places_by_run(self) -> dict[int, tuple[tuple[HeadFeature, ...], list[int]]]:
        """Cached positions by the id of a feature tuple; the tuple is stored so that its id stays unique."""
        return {}

    def apply(
        self, many: ManyTexts[LabelledText], is_positive: Callable[[LabelledText], bool] | None = None
    ) -> AppliedDetector:
        """Score many texts in order and, if they have labels, measure the detector on them.

        Raises UserError if no text can be read.
        """
        labels: dict[int, bool] = {}
        rows = []
        num_fitted = 0
        for batch in many.batches():
            scores = self.scores(self.pretrained, [reading for _, reading in batch])
            labels |= {} if is_positive is None else {text.line.line: is_positive(text) for text, _ in batch}
            for (text, _), score in zip(batch, scores.tolist(), strict=True):
                num_fitted += text.digest in self.fitted_to
                rows.append(
                    {
                        "text": text.line.line,
                        "id": text.line.id,
                        "predicted": self.fitted.positive if score > self.threshold else self.fitted.negative,
                        "score": score,
                        "margin": score - self.threshold,
                        "start": text.words[:START],
                    }
                )
        scored = AppliedScore.rows(rows).sorted("text")
        measured = MeasuredDetector.single()
        if labels:
            measured = _measured(scored, torch.tensor([labels[row.text] for row in scored]))
        return AppliedDetector(
            measured=measured,
            scores=scored,
            num_texts=len(scored),
            num_positive=sum(row.margin > 0 for row in scored),
            notes=tuple(
                note for note in (_fitted_note(num_fitted, len(scored)), self.held_out, *many.notes()) if note
            ),
        )


def _fitted_note(count: int, total: int) -> str:
    """A note that some of the texts are training texts, or an empty string if none of them is."""
    if not count:
        return ""
    texts = "All of these texts are" if count == total else f"{count:,} of these {total:,} texts are"
    if count == 1 < total:
        texts = f"1 of these {total:,} texts is"
    return f"{texts} among the detector's training texts, so this is not an independent test."


def _measured(scored: Records[AppliedScore], is_positive: Tensor) -> MeasuredDetector:
    is_called = torch.from_numpy(scored.numbers("margin")) > 0
    if bool(is_positive.all()) or not bool(is_positive.any()):
        rate = float(is_called.double().mean())
        return MeasuredDetector.single(**{"hits" if is_positive.all() else "false_alarms": rate})
    result = separation(torch.from_numpy(scored.numbers("score")).unsqueeze(1), is_positive)
    lower, upper = (None if isnan(float(end)) else float(end) for end in result.interval())
    rates = call_rates(is_called, is_positive)
    return MeasuredDetector.single(auroc=float(result.auroc[0]), lower=lower, upper=upper, **rates._asdict())


MOST_TOKENS_DRAWN = 512


def head_map(pretrained: Pretrained, reading: Reading, feature: SeparatingFeature) -> NamedTensor | None:
    """A head's weights in a text; None for texts of over 512 tokens and for heads outside self-attention."""
    if feature.stack != "self" or len(reading.text.ids) > MOST_TOKENS_DRAWN:
        return None
    maps: list[NamedTensor] = []

    def take(layer: CapturedLayer) -> None:
        if (layer.stack_name, layer.layer) == (feature.stack, feature.layer):
            weights = layer.weights()[0, feature.head].float().numpy(force=True)
            maps.append(NamedTensor(("query", "key"), weights, layer_mask(layer.attention)))
            raise StopCapture

    capture(pretrained.model, pretrained.inputs([reading]), take)
    return maps[0] if maps else None


def _text_parts(text: object) -> dict[str, str]:
    """A text's parts in the order in which a model reads them, without the text's other keys."""
    mapping = text if isinstance(text, Mapping) and not {"ids", "tokens"} & {*text} else {"text": text}
    parts = {}
    for part in PARTS:
        if part not in mapping and part != "text":
            continue
        try:
            parts[part] = text_or_ids(mapping.get(part))
        except ValueError as error:
            raise UserError(f"{part}: {error}") from None
        if not parts[part]:
            raise UserError(f"{part}: {NO_TEXT}")
    return parts
