"""A survey of many texts from what a batch of heads has kept of each."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attncli.batch.store.columns import Columns
from attncli.batch.store.reading import Reader, Runs
from attncli.errors import UserError
from attncli.experiments.survey.totals import HeadTotals, Where
from attncli.report import Report
from attncli.spec.models.heads import HeadsSpec

STACK = re.compile(r"(?:(encoder|decoder)\.(self|cross)\.)?(\w+)(\.rows)?")
DISPLAY_KEYS = ("sort", "ascending", "top", "table", "statistic")
"""Settings that choose what is shown of the heads, and change nothing of what is kept."""


def kept_spec(spec: HeadsSpec) -> HeadsSpec:
    """The settings of the survey of one text, as a store keeps it: every statistic of every head."""
    off = {"texts": None, "text_group": None, "probe": None, "num_tokens": None}
    shown = {key: HeadsSpec.model_fields[key].default for key in ("ascending", "top", "table", "statistic")}
    return spec.model_copy(update={**off, **shown, "sort": None})


def settings_of_survey(path: Path, reader: Reader, model: str | None) -> tuple[int, dict[str, Any]]:
    """The number and the settings of the one survey in a store; UserError where there is none, or several."""
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if settings["experiment"] == "heads" and (model is None or settings["model"] == model)
    }
    if not surveys:
        of_model = f" of {model}" if model is not None else ""
        raise UserError(f"store: {path} has no survey of heads{of_model}")
    if len(surveys) > 1:
        keys = {key for settings in surveys.values() for key in settings}
        telling = {key: dict.fromkeys(str(of.get(key)) for of in surveys.values()) for key in sorted(keys)}
        found = "; ".join(f"{key} {', '.join(v)}" for key, v in telling.items() if len(v) > 1)
        raise UserError(f"store: {path} has {len(surveys)} surveys ({found}): model chooses one")
    ((number, settings),) = surveys.items()
    return number, settings


def totals_of_store(reader: Reader, settings: int) -> HeadTotals:
    """What the runs of these settings come to; a run is a text."""
    totals = HeadTotals()
    for runs in reader.done():
        kept = [place for place, run in enumerate(runs.runs) if run.settings == settings]
        if kept:
            _add(totals, runs, runs.figures[kept])
    return totals


def _add(totals: HeadTotals, runs: Runs, figures: np.ndarray) -> None:
    totals.num_texts += len(figures)
    for where, names, places in _layers(runs.columns):
        totals.add_array(where, names, figures[:, places])
    for place, column in enumerate(runs.columns):
        if column.layer is None and (match := STACK.fullmatch(column.statistic)) and match[4]:
            totals.add_rows(_where(match, 0)["stack"], match[3], int(figures[:, place].sum()))


def _layers(columns: Columns) -> list[tuple[Where, Sequence[str], np.ndarray]]:
    """Each layer, its statistics, and the places of their numbers (head, statistic)."""
    layers: dict[tuple[Any, ...], dict[int, dict[str, int]]] = {}
    for place, column in enumerate(columns):
        match = STACK.fullmatch(column.statistic)
        if column.layer is not None and column.head is not None and match:
            of_layer = layers.setdefault(tuple(_where(match, column.layer).items()), {})
            of_layer.setdefault(column.head, {})[match[3]] = place
    return [
        (dict(where), list(heads[0]), np.array([list(of_head.values()) for of_head in heads.values()]))
        for where, heads in layers.items()
    ]


def _where(match: re.Match[str], layer: int) -> Where:
    kind = match[2] or "self"
    stack = "cross" if kind == "cross" else match[1] or "self"
    return {"layer": layer, "kind": kind, "stack": stack}


def store_report(path: Path, reader: Reader, spec: HeadsSpec, model: str | None = None) -> Report:
    """The survey in a store, of the model where it holds several; `spec` says what of it is shown.

    UserError where there is none, or where it is not clear which.
    """
    from attncli.experiments.survey.experiment import report_of_totals

    number, settings = settings_of_survey(path, reader, model)
    totals = totals_of_store(reader, number)
    counts = reader.counts()
    notes = [f"{counts['failed']:,} of the texts failed, and are left out."] if counts["failed"] else []
    if earlier := reader.earlier_runs():
        notes.append(f"{earlier.capitalize()}.")
    shown = {key: getattr(spec, key) for key in DISPLAY_KEYS}
    read = {"texts": str(path), "sentence": None, "context": None}
    known = {key: value for key, value in settings.items() if key in HeadsSpec.model_fields}
    complete = HeadsSpec.model_construct(**{**known, **read, **shown})
    return report_of_totals(complete, totals, Path(str(complete.model_source())).name, notes)
