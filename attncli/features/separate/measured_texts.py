"""The texts that a store has measured, with their labels: what `attn separate` reads in place of runs."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from attncli.errors import UserError
from attncli.features.separate.door import Separating, TextRows, separate_measured
from attncli.features.separate.question import LOSS, MeasuredTextSpec, SeparateSpec, report_of
from attncli.models.folder import model_on_disk
from attncli.models.labelled_files import LabelNames, WholeLines, line_text
from attncli.models.loading import in_use, source_of, without_weights
from attncli.models.pretrained import Pretrained
from attncli.records.report import Report
from attncli.runs.plan import Plan, plan_of_texts
from attncli.runs.reading import FailedRun, Reader, reading
from attncli.runs.runner import model_of
from attncli.runs.stored_columns import StoredColumns, survey_columns_of
from attncli.settings.text import FILE_SETTINGS
from attncli.system.plain_text import counted

OTHER_WEIGHTS = {"skip_sink": 0, "words": False, "weighted": False, "ablate": []}
"""Settings of a survey that change what its numbers are of; a detector reads a model as it is."""
OF_OTHER_INPUT = ("texts", "relations", "pairs", *FILE_SETTINGS, "probe")
SHARED = ("model", "allow_download", "truncate", "dtype", "load", "device")
"""Settings with which texts were measured, and a detector reads others."""

FeatureColumn = tuple[str, int, int, str]
TextParts = tuple[tuple[str, str], ...]
"""What a model reads of a text."""


def plan_of(spec: SeparateSpec, file: WholeLines) -> Plan:
    """The plan that measures each text of a file by itself."""
    settings = {name: getattr(spec, name) for name in SHARED}
    return plan_of_texts(MeasuredTextSpec(**settings), "attn separate", file)


def report_of_store(
    path: Path,
    spec: SeparateSpec,
    *,
    draws: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Report:
    """What separates the texts that a store has measured; a model runs for maps alone, if `draws` asks.

    Their labels are in the store where `texts` names it, else in the file of that name, of whose texts the
    store has a survey. UserError where texts or labels are missing.
    """
    label, kept = spec.label, kept_texts(path, spec)
    assert label is not None, "checked"
    spec = spec.model_copy(update=kept.settings)
    with in_use(_reader_of(spec, draws=draws)) as pretrained:
        result = separate_measured(
            pretrained,
            kept.rows,
            spec.texts,
            label=label,
            way=Separating(spec.hold_out or "", spec.permutations, spec.seed, progress),
            truncate=spec.truncate,
            draws=draws,
        )
        return report_of(spec, pretrained, result, kept.notes)


def _reader_of(spec: SeparateSpec, *, draws: bool) -> Pretrained:
    """The model, without its weights where nothing runs and it is on this machine."""
    source = spec.model_source()
    assert source is not None, "one ships"
    if draws or model_on_disk(source, allow_download=spec.allow_download) is None:
        return model_of(spec)
    asked = source_of(source, allow_download=spec.allow_download)
    return without_weights(asked, allow_download=spec.allow_download)


class KeptTexts(NamedTuple):
    """The texts of a store, the settings with which they were measured, and notes."""

    rows: TextRows
    settings: dict[str, Any]
    notes: list[str]


def kept_texts(path: Path, spec: SeparateSpec) -> KeptTexts:
    """The texts of a store that `spec.texts` names, or those of its file whose numbers the store has."""
    with reading(path) as reader:
        number, settings = _measured_settings(path, reader)
        texts = reader.texts(number)
        if not texts:
            raise UserError(f"{path}: keeps no texts, as a store in a folder: -o FILE.db keeps them")
        numbers = _numbers(reader, number)
        notes = [*_left_out(failed for failed in reader.failed() if failed.run.settings == number)]
    is_survey = settings["experiment"] != MeasuredTextSpec.experiment
    if spec.texts == str(path):
        columns = {
            run: {"id": numbers.labels[run], **_columns_of(line)}
            for run, (_, line) in texts.items()
            if run in numbers.places and line is not None
        }
        _refuse_unknown_columns(path, spec, columns.values())
        chosen = [(row, numbers.places[run]) for run, row in sorted(columns.items())]
    else:
        places = {
            _parts_of(*text, is_survey=is_survey): numbers.places[run]
            for run, text in texts.items()
            if run in numbers.places
        }
        chosen = [*_texts_of_file(path, spec, places, is_survey=is_survey)]
    rows = [row for row, _ in chosen]
    kept = torch.from_numpy(numbers.values[[place for _, place in chosen]])
    losses = kept[:, -1] if numbers.has_losses else None
    of_heads = kept[:, : len(numbers.features)].float()
    if losses is None and is_survey:
        notes.append(f"{path.name} is a survey without the losses of its texts: no baseline here.")
    used = {name: settings[name] for name in SHARED if name in settings}
    return KeptTexts(TextRows(rows, numbers.features, of_heads, losses), used, notes)


UNREADABLE = "texts: "
"""How the error of a text begins that the model cannot read, as one that is too long."""


def has_failed(path: Path) -> bool:
    """Whether a run failed for another reason than that the model cannot read its text."""
    with reading(path) as reader:
        return any(not failed.error.startswith(UNREADABLE) for failed in reader.failed())


def _left_out(failed: Iterable[FailedRun]) -> Iterator[str]:
    """How many texts are left out, and why the first of them is."""
    runs = [*failed]
    if runs:
        are = "is" if len(runs) == 1 else "are"
        first = runs[0].error.removeprefix(UNREADABLE)
        yield f"{counted(len(runs), 'text')} {are} left out: {runs[0].run.id or runs[0].run.run}: {first}."


def _measured_settings(path: Path, reader: Reader) -> tuple[int, dict[str, Any]]:
    """The number and the settings of the one survey of texts in a store. UserError without it."""
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if settings.get("experiment") in (MeasuredTextSpec.experiment, "heads")
        and not any(map(settings.get, OF_OTHER_INPUT))
    }
    if not surveys or reader.has_steps():
        raise UserError(f"{path}: has no statistics of heads, text by text: attn results shows what it has")
    if len(surveys) > 1:
        raise UserError(f"{path}: has {len(surveys)} surveys: give a store of one")
    ((number, settings),) = surveys.items()
    for key, usual in OTHER_WEIGHTS.items():
        if settings.get(key, usual) != usual:
            raise UserError(
                f"{path}: was surveyed with {key} {settings[key]}: detectors read a model as it is"
            )
    return number, settings


class KeptNumbers(NamedTuple):
    """The numbers of the runs of a store, losses in the last column; by its number the place of each, and the
    id of its text, or its line.
    """

    features: list[FeatureColumn]
    values: np.ndarray
    places: dict[int, int]
    labels: dict[int, str | None]
    has_losses: bool


def _numbers(reader: Reader, number: int) -> KeptNumbers:
    features: dict[FeatureColumn, int] = {}
    parts: list[tuple[list[int], np.ndarray, np.ndarray]] = []
    places: dict[int, int] = {}
    labels: dict[int, str | None] = {}
    for runs in reader.done():
        kept = [row for row, settings in enumerate(runs.settings) if settings == number]
        if not kept:
            continue
        named, loss = _features_of(runs.columns)
        targets = [features.setdefault(feature, len(features)) for feature in named]
        losses = np.full(len(kept), np.nan) if loss is None else runs.values[kept, loss]
        parts.append((targets, runs.values[kept][:, [*named.values()]], losses))
        labels |= zip(runs.run, runs.id, strict=True)
        places |= {runs.run[row]: len(places) + place for place, row in enumerate(kept)}
    values = np.full((len(places), len(features) + 1), np.nan)
    start = 0
    for targets, numbers, losses in parts:
        end = start + len(numbers)
        values[start:end, targets] = numbers
        values[start:end, -1] = losses
        start = end
    return KeptNumbers([*features], values, places, labels, not np.isnan(values[:, -1]).all())


def _features_of(columns: StoredColumns) -> tuple[dict[FeatureColumn, int], int | None]:
    """The statistics of heads with their columns, and the column of the loss."""
    features = {
        (number.stack, layer, head, number.statistic): place
        for number, place, layer, head in survey_columns_of(columns).of_all
        if layer is not None and head is not None
    }
    losses = [place for place, column in enumerate(columns) if column == (LOSS, None, None, None, None)]
    return features, losses[0] if losses else None


def _columns_of(line: str | None) -> dict[str, Any]:
    columns: dict[str, Any] = {} if line is None else json.loads(line)
    return columns


def _parts_of(text: str, line: str | None, *, is_survey: bool) -> TextParts:
    if is_survey or line is None:
        return (("text", text),)
    return tuple(line_text(line).parts.items())


def _refuse_unknown_columns(path: Path, spec: SeparateSpec, rows: Any) -> None:
    """UserError where a store has no labels, or not the groups that are asked for."""
    names = dict.fromkeys(name for row in rows for name in row)
    assert spec.label is not None, "checked"
    for key, name in (("label", LabelNames.of(spec.label).column), ("hold_out", spec.hold_out)):
        if name is not None and name not in names:
            has = (
                f"it has {', '.join(name for name in names if name != 'id')}"
                if names
                else "a survey keeps texts alone"
            )
            advice = f"give the file that has it: attn separate FILE.csv --label {spec.label} --store {path}"
            raise UserError(f"{key}: {path} has no column {name} ({has}): {advice}")


def _texts_of_file(
    path: Path, spec: SeparateSpec, places: Mapping[TextParts, int], *, is_survey: bool
) -> Iterator[tuple[dict[str, Any], int]]:
    """The columns of each text of a file, and where its numbers are."""
    assert spec.label is not None, "checked"
    with WholeLines(spec.texts, LabelNames.of(spec.label), spec.hold_out) as file:
        file.count()
        for (number, labelled), line in zip(file.numbered(), file, strict=True):
            if is_survey and labelled.kinds != ["text"]:
                kinds = " and ".join(labelled.kinds)
                advice = f"attn separate {spec.texts} --label {spec.label} -o FILE.db measures them"
                raise UserError(f"{file.label}:{number}: has {kinds}, a survey texts alone: {advice}")
            place = places.get(tuple(labelled.parts.items()))
            if place is None:
                raise UserError(f"{file.label}:{number}: is not among the texts of {path}")
            yield {"id": line.label, **_columns_of(line.context)}, place
