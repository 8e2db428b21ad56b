"""Library functions that separate two groups of texts, and that apply the resulting detectors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import UserError
from attncli.features.separate.applied import MODEL, Detector, head_map
from attncli.features.separate.labelled_texts import LabelledReader
from attncli.features.separate.results import (
    BASELINE,
    AppliedDetector,
    DetectorWeight,
    FittedDetector,
    MapOfText,
    SeparatedTexts,
)
from attncli.models.digests import content_digest
from attncli.models.folder import weight_files
from attncli.models.labelled_files import LabelledFile, LabelledText, LabelNames, line_text
from attncli.models.loading import in_use, open_model
from attncli.models.model_arguments import Model
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.text_files import ManyTexts
from attncli.records.arguments import (
    FilePath,
    NonBlankText,
    Seed,
    Size,
    by,
    checked,
    file_name,
    listed,
    shown,
)
from attncli.records.columns import Records
from attncli.system.files import TEXT_BYTES, read_whole
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from attncli.features.separate.text_features import FeatureTable

NUM_MAPS = 6
"""The number of misclassified texts that get a map."""
RUN_SHARE = 0.8
"""The share of the progress that the model's runs take up."""


def _labelled(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    rows = listed(value)
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f'must be mappings such as {{"text": "...", "injected": 1}} (got {shown(row)})')
    return rows


LabelledTexts = Annotated[str | PathLike[str] | Iterable[Mapping[str, object]], by(_labelled)]


@checked
def separate(
    model: Model,
    texts: LabelledTexts,
    *,
    label: NonBlankText,
    hold_out: NonBlankText | None = None,
    permutations: Size = 1000,
    seed: Seed = 0,
    truncate: bool = False,
    progress: Callable[[float], None] | None = None,
) -> SeparatedTexts:
    """Find the heads that separate texts by a label, and test them on held-out groups.

    `texts` is a file (CSV, JSON Lines) or mappings, with text, a column `label` that has two values
    (`kind=attack` makes attack the positive value) and, optionally, instruction, document and answer. With
    these parts, the statistics include the weight that the answer's rows, or the last row, put on each part,
    and on passages marked in the text as <<...>>. The groups in the column `hold_out` are held out in turn.
    Raises UserError for invalid labels or groups, and if scikit-learn is missing. See `SeparatedTexts`.
    """
    from attncli.features.separate.text_features import feature_table

    source = fspath(texts) if isinstance(texts, str | PathLike) else "texts"
    with LabelledFile(texts, LabelNames.of(label), hold_out) as file, in_use(model) as pretrained:
        reader = LabelledReader(pretrained, truncate=truncate)
        many = ManyTexts(file, reader.read, _progress_part(progress, 0.0, RUN_SHARE))
        table = feature_table(pretrained, many, with_loss=True)
        way = Separating(hold_out or "", permutations, seed, _progress_part(progress, RUN_SHARE, 1.0))
        result = _separate_table(pretrained, table, file, source, way)
        return with_map(pretrained, result, table.texts, reader)


class Separating(NamedTuple):
    """Options of the search for features that separate texts; see `separate`."""

    hold_out: str = ""
    permutations: int = 1000
    seed: int = 0
    progress: Callable[[float], None] | None = None


def _separate_table(
    pretrained: Pretrained, table: "FeatureTable", file: LabelledFile, source: str, way: Separating
) -> SeparatedTexts:
    from attncli.features.separate.separation import Measured, separated

    assert file.values is not None and file.label_names is not None
    column, (negative, positive) = file.label_names.column, file.values
    measured = Measured(
        pretrained.name,
        weights_digest(pretrained),
        f"{column}={negative}",
        f"{column}={positive}",
        source,
    )
    return separated(
        table,
        torch.tensor([file.is_positive(text) for text in table.texts]),
        key=way.hold_out,
        seed=way.seed,
        permutations=way.permutations,
        measured=measured,
        progress=way.progress,
    )


def with_map(
    pretrained: Pretrained, result: SeparatedTexts, texts: Iterable[LabelledText], reader: LabelledReader
) -> SeparatedTexts:
    """Add the strongest head's maps for the misclassified texts that are farthest from the threshold."""
    by_line = {text.line.line: text for text in texts}
    maps: list[MapOfText] = []
    for row in result.wrong[:NUM_MAPS]:
        reading = reader.read(by_line[row.text])
        drawn = head_map(pretrained, reading, result.strongest[0])
        if drawn is not None:
            maps.append(MapOfText(row.text, row.id or str(row.text), reading.text.tokens, drawn))
    if not maps:
        return result
    return replace(result, weights=maps[0].weights, tokens=maps[0].tokens, maps=tuple(maps))


class TextRows(NamedTuple):
    """Texts that were measured earlier: their columns, as passed to `separate`, and their statistics.

    `features` has (stack, layer, head, statistic).
    """

    columns: Sequence[Mapping[str, object]]
    features: Sequence[tuple[str, int, int, str]]
    numbers: Float[Tensor, "text feature"]
    losses: Float[Tensor, " text"] | None = None


def separate_measured(
    pretrained: Pretrained,
    rows: TextRows,
    source: str,
    *,
    label: str,
    way: Separating,
    truncate: bool = False,
    draws: bool = False,
) -> SeparatedTexts:
    """Separate texts that were measured earlier; see `separate`.

    The texts are tokenized again, but the model does not run, so `pretrained` may lack weights unless `draws`
    requires a head's map.
    """
    from attncli.features.separate.text_features import FeatureTable, HeadFeature, without_gaps

    with LabelledFile(rows.columns, LabelNames.of(label), way.hold_out or None) as file:
        file.count()
        texts = [text for _, text in file.numbered()]
        reader = LabelledReader(pretrained, truncate=truncate)
        readings = [reader.read(text) for text in texts]
        answers = [getattr(reading, "num_answer", 0) for reading in readings]
        table = FeatureTable(
            [HeadFeature(*feature) for feature in rows.features],
            rows.numbers,
            texts,
            torch.tensor([len(reading.text.ids) for reading in readings]),
            None if rows.losses is None else without_gaps(rows.losses),
            [],
            torch.tensor(answers) if any(answers) else None,
            [reading.text.ids.tolist() for reading in readings],
        )
        result = _separate_table(pretrained, table, file, source, way)
        return with_map(pretrained, result, texts, reader) if draws else result


def read_line(pretrained: Pretrained, line: str, *, truncate: bool = False) -> Reading:
    """Read the text and parts in a line of `WholeLines`, for the model."""
    return LabelledReader(pretrained, truncate=truncate).read(line_text(line))


class MeasuredTexts(NamedTuple):
    """Head statistics and losses of texts measured together; `unshown` names layers without statistics."""

    features: Sequence[tuple[str, int, int, str]]
    numbers: Float[Tensor, "text feature"]
    losses: Float[Tensor, " text"] | None
    unshown: str


def measure_texts(pretrained: Pretrained, readings: Sequence[Reading]) -> MeasuredTexts:
    """Measure the statistics that `separate` needs on texts of equal length."""
    from attncli.features.separate.text_features import FeatureRun

    run = FeatureRun(pretrained, with_loss=pretrained.predicts == "next")
    parts = [*run.in_parts(readings)]
    losses = [part.losses for part in parts if part.losses is not None]
    numbers = torch.cat([part.numbers for part in parts])
    return MeasuredTexts(parts[0].features, numbers, torch.cat(losses) if losses else None, run.unshown)


def _progress_part(
    progress: Callable[[float], None] | None, start: float, end: float
) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(start + (end - start) * done)


def weights_digest(pretrained: Pretrained) -> str:
    """The SHA-256 of a model's weights, from its weight files or, without such files, from its parameters."""
    if isinstance(pretrained.source, str) and Path(pretrained.source).exists():
        digests = [content_digest(file) for file in sorted(weight_files(Path(pretrained.source)))]
        if digests:
            return sha256("".join(digests).encode()).hexdigest()
    digest = sha256()
    for name, parameter in sorted(pretrained.model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        if not parameter.is_meta:
            digest.update(parameter.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@checked
def read_detector(file: FilePath, model: Model) -> Detector:
    """Open the detector in a report from `attn separate -o detector.json`, for the model it was fitted to.

    A text is positive if `detector.score("a text")` is above `detector.threshold`. Raises UserError for a
    file without a detector, and for another model.
    """
    fitted, weights, held_out, fitted_to = _read(Path(fspath(file)))
    pretrained = model if isinstance(model, Pretrained) else open_model(model)
    if weights_digest(pretrained) != fitted.digest:
        raise UserError(MODEL.format(name=pretrained.name, fitted=fitted.model))
    return Detector(pretrained, fitted, weights, held_out, fitted_to)


def _read(file: Path) -> tuple[FittedDetector, Records[DetectorWeight], str, frozenset[str]]:
    """The detector in a report, its weights, its performance on held-out groups, and its training texts."""
    try:
        statistics = parsed_json(read_whole(file, TEXT_BYTES))["statistics"]
        fitted = FittedDetector.rows(statistics["fitted"])
        weights = DetectorWeight.rows(statistics.get("coefficients", []))
        first = fitted[0]
    except OSError as error:
        raise UserError(f"apply: {file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, OverflowError):
        raise UserError(
            f"apply: {file}: contains no detector: write one with attn separate -o FILE.json"
        ) from None
    weights = weights.where(lambda row: row.detector == first.detector)
    if not weights:
        nothing = "no statistic separated the groups, so every text would get the same label"
        raise UserError(f"apply: {file}: the detector uses no statistics: {nothing}")
    for name in ("detector", "model", "digest", "positive", "negative", "parts"):
        if not isinstance(first[name], str):
            raise UserError(f"apply: {file}: fitted: {name} must be text (got {shown(first[name])})")
    for name in ("threshold", "intercept"):
        _check_number(file, f"fitted: {name}", first[name])
    for place, row in enumerate(weights):
        for name in ("coefficient", "mean", "scale"):
            _check_number(file, f"coefficients[{place}]: {name}", row[name])
        for name in ("layer", "head"):
            value = row[name]
            if not isinstance(value, int) or value < 0:
                wrong = f"coefficients[{place}]: {name} must be a whole number, at least 0"
                raise UserError(f"apply: {file}: {wrong} (got {shown(value)})")
        if not row.scale > 0:
            raise UserError(f"apply: {file}: coefficients[{place}]: scale must be above 0 (got {row.scale})")
    return first, weights, _held_out_line(statistics), _fitted_digests(statistics)


LARGEST = 1e30
"""Limit for a detector's numbers: far above any head statistic, and low enough for finite products."""


def _check_number(file: Path, name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(float(str(value))) < LARGEST:
        raise UserError(f"apply: {file}: {name} must be a finite number (got {shown(value)})")


def _held_out_line(statistics: Any) -> str:
    """A line such as `Held out: AUROC 0.56 (0.39 to 0.72); bag of words 0.61.`; "" if a number is missing."""
    try:
        held_out = statistics["held_out"]
        interval = (
            "" if held_out["lower"] is None else (f" ({held_out['lower']:.2f} to {held_out['upper']:.2f})")
        )
        baselines = [row for row in statistics["detectors"] if row["kind"] == BASELINE]
        best = max(baselines, key=lambda row: row["auroc"])
        return f"Held out: AUROC {held_out['auroc']:.2f}{interval}; {best['detector']} {best['auroc']:.2f}."
    except (KeyError, TypeError, ValueError):
        return ""


def _fitted_digests(statistics: Any) -> frozenset[str]:
    """The digests of the texts in a report; empty if the report has no digests."""
    try:
        return frozenset(str(row["digest"]) for row in statistics["predictions"])
    except (KeyError, TypeError):
        return frozenset()


@checked
def apply_detector(
    model: Model,
    texts: LabelledTexts,
    detector: FilePath,
    *,
    label: NonBlankText | None = None,
    truncate: bool = False,
    progress: Callable[[float], None] | None = None,
) -> AppliedDetector:
    """Apply the detector in a report to texts: a file (CSV, JSON Lines) or mappings with text.

    With `label`, as in `separate`, the result also has the AUROC, hits and false alarms; if `label` is the
    label column that the detector was fitted to, the positive value stays positive. Raises UserError for
    another model, if `label` names the detector's negative value as the positive one, and for texts that lack
    the parts that the detector was fitted to.
    """
    with in_use(model) as pretrained:
        opened = replace(read_detector(detector, pretrained), pretrained=pretrained)
        fitted, names = opened.fitted, None
        if label is not None:
            names = LabelNames.of(label).as_fitted(fitted.negative, fitted.positive)
        reader = LabelledReader(pretrained, truncate=truncate)

        def read(text: Any) -> Any:
            opened.check_parts(text)
            return reader.read(text)

        with LabelledFile(texts, names) as file:
            many = ManyTexts(file, read, progress)
            result = opened.apply(many, None if names is None else file.is_positive)
        if names is None or file.values is None:
            return result
        positive = f"{names.column}={file.values[1]}"
        if positive == fitted.positive:
            return result
        hit = f"A hit is a text with {positive} that the detector calls {fitted.positive}."
        return replace(result, notes=(hit, *result.notes))
