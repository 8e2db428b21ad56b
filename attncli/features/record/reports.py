"""The report of a recording, made by `attn record` and `attncli.record`."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attncli.commands.surveys import INTERVALS_NOTE, sink_heads_rate
from attncli.core.names import HEAD_STATISTICS
from attncli.core.runtime import versions
from attncli.features.record.listening.notes import listed
from attncli.features.record.results import RecordedHeads
from attncli.features.record.settings import RecordSpec
from attncli.records.columns import few_notes
from attncli.records.report import Box, NamedTensor, Picture, Report
from attncli.records.stored_columns import StoredColumns
from attncli.records.surveys import SurveyedHead
from attncli.runs.report_values import values_of
from attncli.system.plain_text import counted

if TYPE_CHECKING:
    from attncli.features.record.recorder import Recorder

LARGEST_PNG = 640
"""Maximum number of pixels of the longer side of a picture in a report."""


def recording_report(recorder: "Recorder", survey: RecordedHeads, spec: RecordSpec | None = None) -> Report:
    """Return the report of a recording. Raises UserError if the picture cannot be read."""
    spec = RecordSpec.model_validate({}) if spec is None else spec
    stack = "self" if any(row.stack == "self" for row in survey.modules) else "cross"
    maps = recorder.maps(stack)
    first = next(row for row in survey.modules if row.stack == stack)
    axes = ("query", "key") if "weights" in maps else ("query_block", "key_block")
    tensors = {name: NamedTensor(("layer", "head", *axes), values) for name, values in maps.items()}
    names = recorder.names_on_maps() if stack == "self" else []
    pictures: tuple[Picture, ...] = ()
    queries: list[str] = []
    if recorder.grid is not None and spec.image is not None and len(names) == first.num_queries:
        pictures = (_picture(spec.image, recorder.grid, len(names)),)
        looks, queries = _looks(maps, names, recorder.grid)
        tensors |= looks
    notes = [*survey.notes, *_notes(survey, stack, recorder.unmapped(stack), spec)]
    settings = {**_settings(spec), "maps": stack if tensors else "none", "from": queries}
    return Report(
        spec.experiment,
        settings,
        versions(),
        tuple(names),
        tensors=tensors,
        result=_with_sinks(survey),
        notes=tuple(notes),
        about=about_recording(survey, spec),
        pictures=pictures,
    )


def run_values(survey: RecordedHeads, spec: RecordSpec) -> tuple[StoredColumns, np.ndarray]:
    """Return the columns and numbers of a run for a store.

    Heads in modules whose weights are not all finite have no numbers.
    """
    undefined = {(row.stack, row.layer) for row in survey.modules if row.nan_texts}
    rows = zip(survey.heads.column("stack"), survey.heads.column("layer"), strict=True)
    has_none = np.array([(stack, int(layer)) in undefined for stack, layer in rows])
    if has_none.any():
        cells = dict(survey.heads.cells)
        for name in cells.keys() & {*HEAD_STATISTICS}:
            cells[name] = np.where(has_none, np.nan, survey.heads.numbers(name))
        survey = replace(survey, heads=SurveyedHead.table(**cells))
    return values_of(Report(spec.experiment, _settings(spec), {}, result=_with_sinks(survey)))


def _with_sinks(survey: RecordedHeads) -> RecordedHeads:
    first_key = survey.heads.column("sink_mass")
    return replace(survey, model=sink_heads_rate(torch.from_numpy(first_key)), notes=())


def _settings(spec: RecordSpec) -> dict[str, Any]:
    settings = spec.model_dump(exclude={*spec.unused_keys()})
    return settings | {"heads": list(spec.heads)}


def about_recording(survey: RecordedHeads, spec: RecordSpec) -> str:
    """Return `python predict.py: 144 heads of 12 modules, on 17 tokens.`"""
    read = counted(survey.num_texts, "text")
    if survey.texts is None and survey.num_tokens is not None:
        read = counted(survey.num_tokens, "token")
    heads = f"{counted(len(survey.heads), 'head')} of {counted(len(survey.modules), 'module')}, on {read}."
    return f"{spec.program}: {heads}" if spec.program else heads


def _notes(survey: RecordedHeads, stack: str, unmapped: Sequence[str], spec: RecordSpec) -> list[str]:
    """Return notes about the measured calls and the maps."""
    notes = []
    if survey.intervals:
        notes = [INTERVALS_NOTE.format(kind="text"), *few_notes(survey.num_texts)]
    more = sum(row.calls - row.measured for row in survey.modules)
    if more > 0:
        which = (
            "The first call of each module was measured"
            if all(row.measured == 1 for row in survey.modules)
            else f"{counted(sum(row.measured for row in survey.modules), 'call')} were measured"
        )
        hint = "" if spec.calls == "all" else " (use --calls all to measure every call)"
        notes.append(
            f"{which}; {counted(more, 'more call')} {'was' if more == 1 else 'were'} only counted{hint}."
        )
    if survey.num_texts > 1:
        notes.append(f"The maps show the first of {survey.num_texts:,} texts.")
    if any(row.stack != stack for row in survey.modules):
        notes.append("The maps show self-attention; cross-attention is in the table of heads.")
    if unmapped:
        notes.append(
            f"The maps leave out {listed(unmapped)}: the number of tokens differs from that of the first "
            "module."
        )
    return notes


def _picture(file: str, grid: tuple[int, int], count: int) -> Picture:
    """Return the picture, with each token placed on its patch."""
    from attncli.models.image_files import open_picture

    opened = open_picture(file)
    image, (rows, columns) = opened.image, grid
    size = image.width, image.height
    small = image.copy()
    small.thumbnail((LARGEST_PNG, LARGEST_PNG))
    png = io.BytesIO()
    small.save(png, "PNG")
    patches: list[Box | None] = [
        (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        for row in range(rows)
        for column in range(columns)
    ]
    before: list[Box | None] = [None] * (count - len(patches))
    boxes = (*before, *patches)
    return Picture(
        Path(file).name, size, (0.0, 0.0, float(image.width), float(image.height)), png.getvalue(), boxes
    )


def _looks(
    maps: dict[str, np.ndarray], names: Sequence[str], grid: tuple[int, int]
) -> tuple[dict[str, NamedTensor], list[str]]:
    """Return the first token's weights, or the mean weights if no token precedes the patches.

    The second result is the name of these weights.
    """
    if "weights" not in maps:
        return {}, []
    weights, has_before = maps["weights"], len(names) > grid[0] * grid[1]
    looks = weights[:, :, 0] if has_before else weights.mean(axis=2)
    mean = np.stack([np.nanmean(layer, axis=0) if np.isfinite(layer).any() else layer[0] for layer in looks])
    tensors = {
        "looks": NamedTensor(("layer", "head", "key"), looks),
        "mean_look": NamedTensor(("layer", "key"), mean),
    }
    return tensors, [names[0]] if has_before else []
