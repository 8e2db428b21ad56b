"""What separates two groups of texts, and detectors of them: the doors of `measure`, as in `library`."""

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
from attncli.features.separate.applied import MODEL, Detector, map_of_head
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
"""Of misclassified texts that are drawn."""
OF_RUNS = 0.8
"""The share of the time that runs of the model take, in what is told of progress."""


def _labelled(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return file_name(value)
    rows = listed(value)
    for row in rows:
        if not isinstance(row, Mapping):
            raise ValueError(f'must be mappings as {{"text": "...", "injected": 1}} (got {shown(row)})')
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
    """Which heads tell texts with a label from those without, and what holds on groups that were left out.

    `texts` is a file (CSV, JSON Lines) or mappings, with text, the column `label` of two values
    (`kind=attack` names the positive one) and, optionally, instruction, document and answer: then also how
    much weight the answer's rows, or the last one, have on each, and on parts that are marked in the text as
    <<...>>. Each group of the column `hold_out` is left out in turn, its texts together. See
    `SeparatedTexts`. UserError for labels and groups that do not fit, and without scikit-learn.
    """
    from attncli.features.separate.text_features import feature_table

    source = fspath(texts) if isinstance(texts, str | PathLike) else "texts"
    with LabelledFile(texts, LabelNames.of(label), hold_out) as file, in_use(model) as pretrained:
        reader = LabelledReader(pretrained, truncate=truncate)
        many = ManyTexts(file, reader.read, _part_of(progress, 0.0, OF_RUNS))
        table = feature_table(pretrained, many, with_loss=True)
        way = Separating(hold_out or "", permutations, seed, _part_of(progress, OF_RUNS, 1.0))
        result = _of_table(pretrained, table, file, source, way)
        return with_map(pretrained, result, table.texts, reader)


class Separating(NamedTuple):
    """How what separates texts is looked for: see `separate`."""

    hold_out: str = ""
    permutations: int = 1000
    seed: int = 0
    progress: Callable[[float], None] | None = None


def _of_table(
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
    """The result with what the strongest head looks at in the texts that are farthest from their label."""
    by_line = {text.line.line: text for text in texts}
    maps: list[MapOfText] = []
    for row in result.wrong[:NUM_MAPS]:
        reading = reader.read(by_line[row.text])
        drawn = map_of_head(pretrained, reading, result.strongest[0])
        if drawn is not None:
            maps.append(MapOfText(row.text, row.id or str(row.text), reading.text.tokens, drawn))
    if not maps:
        return result
    return replace(result, weights=maps[0].weights, tokens=maps[0].tokens, maps=tuple(maps))


class TextRows(NamedTuple):
    """What was measured of texts before: their columns, as `separate` takes them, and their numbers.

    `features` are (stack, layer, head, statistic).
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
    """What separates texts that were measured before; `separate` says how.

    The model reads the texts again, without a run: `pretrained` may be without weights, unless `draws` asks
    for the map of a head.
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
        result = _of_table(pretrained, table, file, source, way)
        return with_map(pretrained, result, texts, reader) if draws else result


def read_line(pretrained: Pretrained, line: str, *, truncate: bool = False) -> Reading:
    """The text of a line of `WholeLines` as the model reads it."""
    return LabelledReader(pretrained, truncate=truncate).read(line_text(line))


class MeasuredTexts(NamedTuple):
    """The numbers of texts that ran together: of heads, and their losses; which layers are not in them."""

    features: Sequence[tuple[str, int, int, str]]
    numbers: Float[Tensor, "text feature"]
    losses: Float[Tensor, " text"] | None
    unshown: str


def measure_texts(pretrained: Pretrained, readings: Sequence[Reading]) -> MeasuredTexts:
    """What `separate` measures of texts of equal counts."""
    from attncli.features.separate.text_features import FeatureRun

    run = FeatureRun(pretrained, with_loss=pretrained.predicts == "next")
    parts = [*run.in_parts(readings)]
    losses = [part.losses for part in parts if part.losses is not None]
    numbers = torch.cat([part.numbers for part in parts])
    return MeasuredTexts(parts[0].features, numbers, torch.cat(losses) if losses else None, run.unshown)


def _part_of(
    progress: Callable[[float], None] | None, start: float, end: float
) -> Callable[[float], None] | None:
    return None if progress is None else lambda done: progress(start + (end - start) * done)


def weights_digest(pretrained: Pretrained) -> str:
    """The SHA-256 of a model's weights: of its files, else of its parameters."""
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
    """The detector in a report that `attn separate -o detector.json` wrote, for the model it was fitted to.

    `detector.score("a text")` is its score, positive above `detector.threshold`. UserError for a file without
    a detector, and for another model.
    """
    fitted, weights, held_out, fitted_to = _read(Path(fspath(file)))
    pretrained = model if isinstance(model, Pretrained) else open_model(model)
    if weights_digest(pretrained) != fitted.digest:
        raise UserError(MODEL.format(name=pretrained.name, fitted=fitted.model))
    return Detector(pretrained, fitted, weights, held_out, fitted_to)


def _read(file: Path) -> tuple[FittedDetector, Records[DetectorWeight], str, frozenset[str]]:
    """The detector in a report, its weights, how well it did on groups left out, what it was fitted to."""
    try:
        statistics = parsed_json(read_whole(file, TEXT_BYTES))["statistics"]
        fitted = FittedDetector.rows(statistics["fitted"])
        weights = DetectorWeight.rows(statistics.get("coefficients", []))
        first = fitted[0]
    except OSError as error:
        raise UserError(f"apply: {file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, LookupError, OverflowError):
        raise UserError(f"apply: {file}: holds no detector: attn separate -o FILE.json writes one") from None
    weights = weights.where(lambda row: row.detector == first.detector)
    if not weights:
        nothing = "nothing told its groups apart, so that it calls every text the same"
        raise UserError(f"apply: {file}: its detector has no statistics: {nothing}")
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
                wrong = f"coefficients[{place}]: {name} must be a whole number from 0"
                raise UserError(f"apply: {file}: {wrong} (got {shown(value)})")
        if not row.scale > 0:
            raise UserError(f"apply: {file}: coefficients[{place}]: scale must be above 0 (got {row.scale})")
    return first, weights, _how_good(statistics), _fitted_to(statistics)


LARGEST = 1e30
"""Of a number in a detector: far beyond what statistics of heads come to, and their products are finite."""


def _check_number(file: Path, name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(float(str(value))) < LARGEST:
        raise UserError(f"apply: {file}: {name} must be a finite number (got {shown(value)})")


def _how_good(statistics: Any) -> str:
    """As `Held out: AUROC 0.56 (0.39 to 0.72); bag of words 0.61.`; nothing where a report lacks it."""
    try:
        held = statistics["held_out"]
        interval = "" if held["lower"] is None else f" ({held['lower']:.2f} to {held['upper']:.2f})"
        baselines = [row for row in statistics["detectors"] if row["kind"] == BASELINE]
        best = max(baselines, key=lambda row: row["auroc"])
        return f"Held out: AUROC {held['auroc']:.2f}{interval}; {best['detector']} {best['auroc']:.2f}."
    except (KeyError, TypeError, ValueError):
        return ""


def _fitted_to(statistics: Any) -> frozenset[str]:
    """The digests of the texts in a report; nothing where it lacks them."""
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
    """What the detector in a report says of texts: a file (CSV, JSON Lines) or mappings with text.

    With `label`, as in `separate`, also how well: AUROC, hits and false alarms; of the detector's own column
    its positive value is positive. UserError for another model, for the detector's negative value as the
    positive one, and for texts without the parts that the detector was fitted to.
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
        hit = f"A hit is a text with {positive} that is called {fitted.positive}."
        return replace(result, notes=(hit, *result.notes))
