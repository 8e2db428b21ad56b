"""Labelled texts whose measurements are in a store, so that `attn separate` need not run a model."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from attncli.errors import UserError
from attncli.features.separate.door import Separating, TextRows, separate_measured
from attncli.features.separate.question import LOSS, MeasuredTextSpec, SeparateSpec, separation_report
from attncli.models.folder import model_on_disk
from attncli.models.labelled_files import LabelNames, WholeLines, line_text
from attncli.models.loading import in_use, source_of, without_weights
from attncli.models.pretrained import Pretrained
from attncli.records.report import Report
from attncli.records.stored_columns import StoredColumns, parse_survey_columns
from attncli.runs.plan import Plan, plan_texts
from attncli.runs.reading import FailedRun, Reader, reading
from attncli.runs.runner import model_of
from attncli.settings.text import FILE_SETTINGS
from attncli.system.plain_text import counted

OTHER_WEIGHTS = {"skip_sink": 0, "words": False, "weighted": False, "ablate": []}
"""Survey settings that change the attention weights; a detector needs the unchanged model."""
OTHER_INPUTS = ("texts", "relations", "pairs", *FILE_SETTINGS, "probe")
SHARED = ("model", "allow_download", "truncate", "dtype", "load", "device")
"""Settings with which texts were measured, and with which a detector reads new texts."""

FeatureColumn = tuple[str, int, int, str]
TextParts = tuple[tuple[str, str], ...]
"""The parts of a text that a model reads."""


def measuring_plan(spec: SeparateSpec, file: WholeLines) -> Plan:
    """The plan for measuring each text of a file separately."""
    settings = {name: getattr(spec, name) for name in SHARED}
    return plan_texts(MeasuredTextSpec(**settings), "attn separate", file)


def store_report(
    path: Path,
    spec: SeparateSpec,
    *,
    draws: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """Separate the texts that were measured into a store; the model runs only for maps, if `draws` is set.

    If `texts` names the store, the labels are in the store; otherwise, they are in the file `texts`, whose
    texts were surveyed into the store. Raises UserError if texts or labels are missing.
    """
    label, stored = spec.label, stored_texts(path, spec)
    assert label is not None, "checked by the spec"
    spec = spec.model_copy(update=stored.settings)
    with in_use(_reading_model(spec, draws=draws)) as pretrained:
        result = separate_measured(
            pretrained,
            stored.rows,
            spec.texts,
            label=label,
            way=Separating(spec.hold_out or "", spec.permutations, spec.seed, progress),
            truncate=spec.truncate,
            draws=draws,
        )
        return separation_report(spec, pretrained, result, stored.notes)


def _reading_model(spec: SeparateSpec, *, draws: bool) -> Pretrained:
    """The model, without its weights if it is on this machine and does not have to run."""
    source = spec.model_source()
    assert source is not None, "a default model ships with attn"
    if draws or model_on_disk(source, allow_download=spec.allow_download) is None:
        return model_of(spec)
    asked = source_of(source, allow_download=spec.allow_download)
    return without_weights(asked, allow_download=spec.allow_download)


class StoredTexts(NamedTuple):
    """The texts in a store, the settings with which they were measured, and notes."""

    rows: TextRows
    settings: dict[str, Any]
    notes: list[str]


def stored_texts(path: Path, spec: SeparateSpec) -> StoredTexts:
    """The texts of a store that `spec.texts` names, or of a file whose texts were measured into a store."""
    with reading(path) as reader:
        number, settings = _measured_settings(path, reader)
        texts = reader.texts(number)
        if not texts:
            raise UserError(
                f"{path}: contains no texts, because a store in a folder keeps no texts: use -o FILE.db"
            )
        numbers = _numbers(reader, number)
        notes = [*_left_out(failed for failed in reader.failed() if failed.run.settings == number)]
    is_survey = settings["experiment"] != MeasuredTextSpec.experiment
    if spec.texts == str(path):
        columns = {
            run: {"id": numbers.labels[run], **_line_columns(line)}
            for run, (_, line) in texts.items()
            if run in numbers.places and line is not None
        }
        _refuse_unknown_columns(path, spec, columns.values())
        chosen = [(row, numbers.places[run]) for run, row in sorted(columns.items())]
    else:
        places = {
            _text_parts(*text, is_survey=is_survey): numbers.places[run]
            for run, text in texts.items()
            if run in numbers.places
        }
        chosen = [*_file_texts(path, spec, places, is_survey=is_survey)]
    rows = [row for row, _ in chosen]
    values = torch.from_numpy(numbers.values[[place for _, place in chosen]])
    losses = values[:, -1] if numbers.has_losses else None
    head_values = values[:, : len(numbers.features)].float()
    if losses is None and is_survey:
        notes.append(f"The survey in {path.name} has no losses, so there is no loss baseline.")
    used = {name: settings[name] for name in SHARED if name in settings}
    return StoredTexts(TextRows(rows, numbers.features, head_values, losses), used, notes)


UNREADABLE = "texts: "
"""Prefix of errors about a text that the model cannot read, such as a text that is too long."""


def has_failed(path: Path) -> bool:
    """True if a run failed for a reason other than an unreadable text."""
    with reading(path) as reader:
        return any(not failed.error.startswith(UNREADABLE) for failed in reader.failed())


def _left_out(failed: Iterable[FailedRun]) -> Iterator[str]:
    """Yield a note with the number of texts that failed and the reason for the first failure."""
    runs = [*failed]
    if runs:
        are = "is" if len(runs) == 1 else "are"
        first = runs[0].error.removeprefix(UNREADABLE)
        yield f"{counted(len(runs), 'text')} {are} left out: {runs[0].run.id or runs[0].run.run}: {first}."


def _measured_settings(path: Path, reader: Reader) -> tuple[int, dict[str, Any]]:
    """The number and settings of a store's text survey. Raises UserError unless it has exactly one."""
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if settings.get("experiment") in (MeasuredTextSpec.experiment, "heads")
        and not any(map(settings.get, OTHER_INPUTS))
    }
    if not surveys or reader.has_steps():
        raise UserError(f"{path}: has no per-text head statistics: run attn results to see what it contains")
    if len(surveys) > 1:
        raise UserError(f"{path}: has {len(surveys)} surveys: use a store with a single survey")
    ((number, settings),) = surveys.items()
    for key, usual in OTHER_WEIGHTS.items():
        if settings.get(key, usual) != usual:
            raise UserError(
                f"{path}: its survey used {key} {settings[key]}: a detector needs a survey without {key}"
            )
    return number, settings


class StoredNumbers(NamedTuple):
    """The statistics from the runs in a store, with losses in the last column, and, by run number, each
    text's row and label (id or line).
    """

    features: list[FeatureColumn]
    values: np.ndarray
    places: dict[int, int]
    labels: dict[int, str | None]
    has_losses: bool


def _numbers(reader: Reader, number: int) -> StoredNumbers:
    features: dict[FeatureColumn, int] = {}
    parts: list[tuple[list[int], np.ndarray, np.ndarray]] = []
    places: dict[int, int] = {}
    labels: dict[int, str | None] = {}
    for runs in reader.done():
        rows = [row for row, settings in enumerate(runs.settings) if settings == number]
        if not rows:
            continue
        places_by_feature, loss = _loss_and_features(runs.columns)
        targets = [features.setdefault(feature, len(features)) for feature in places_by_feature]
        losses = np.full(len(rows), np.nan) if loss is None else runs.values[rows, loss]
        parts.append((targets, runs.values[rows][:, [*places_by_feature.values()]], losses))
        labels |= zip(runs.run, runs.id, strict=True)
        places |= {runs.run[row]: len(places) + place for place, row in enumerate(rows)}
    values = np.full((len(places), len(features) + 1), np.nan)
    start = 0
    for targets, numbers, losses in parts:
        end = start + len(numbers)
        values[start:end, targets] = numbers
        values[start:end, -1] = losses
        start = end
    return StoredNumbers([*features], values, places, labels, not np.isnan(values[:, -1]).all())


def _loss_and_features(columns: StoredColumns) -> tuple[dict[FeatureColumn, int], int | None]:
    """The columns of head statistics, and the column that has the loss."""
    features = {
        (number.stack, layer, head, number.statistic): place
        for number, place, layer, head in parse_survey_columns(columns).all_weights
        if layer is not None and head is not None
    }
    losses = [place for place, column in enumerate(columns) if column == (LOSS, None, None, None, None)]
    return features, losses[0] if losses else None


def _line_columns(line: str | None) -> dict[str, Any]:
    columns: dict[str, Any] = {} if line is None else json.loads(line)
    return columns


def _text_parts(text: str, line: str | None, *, is_survey: bool) -> TextParts:
    if is_survey or line is None:
        return (("text", text),)
    return tuple(line_text(line).parts.items())


def _refuse_unknown_columns(path: Path, spec: SeparateSpec, rows: Any) -> None:
    """Raise UserError if a store does not have the labels or the groups to hold out."""
    names = dict.fromkeys(name for row in rows for name in row)
    assert spec.label is not None, "checked by the spec"
    for key, name in (("label", LabelNames.of(spec.label).column), ("hold_out", spec.hold_out)):
        if name is not None and name not in names:
            has = (
                f"it has {', '.join(name for name in names if name != 'id')}"
                if names
                else "a survey stores only texts"
            )
            advice = (
                f"use the file that has this column: attn separate FILE.csv --label {spec.label} --store "
                f"{path}"
            )
            raise UserError(f"{key}: {path} has no column {name} ({has}): {advice}")


def _file_texts(
    path: Path, spec: SeparateSpec, places: Mapping[TextParts, int], *, is_survey: bool
) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the columns of each text in a file, and the row that has its statistics."""
    assert spec.label is not None, "checked by the spec"
    with WholeLines(spec.texts, LabelNames.of(spec.label), spec.hold_out) as file:
        file.count()
        for (number, labelled), line in zip(file.numbered(), file, strict=True):
            if is_survey and labelled.kinds != ["text"]:
                kinds = " and ".join(labelled.kinds)
                advice = (
                    f"to measure every part, run attn separate {spec.texts} --label {spec.label} -o FILE.db"
                )
                raise UserError(
                    f"{file.label}:{number}: has {kinds}, but a survey stores only texts: {advice}"
                )
            place = places.get(tuple(labelled.parts.items()))
            if place is None:
                raise UserError(f"{file.label}:{number}: this text is not in the store {path}")
            yield {"id": line.label, **_line_columns(line.context)}, place
