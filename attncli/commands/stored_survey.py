"""A survey of many texts, from what a store kept of each text."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attncli.core.row_statistics import STARTS_SPECIAL
from attncli.errors import UserError
from attncli.measure.patterns import HeadTotals, Where
from attncli.report import Report
from attncli.runs.report_values import Columns
from attncli.runs.results import Reader, differing_settings
from attncli.settings.heads import HeadsSpec

STACK = re.compile(r"(?:(encoder|decoder)\.(self|cross)\.)?(\w+)(\.rows)?")
DISPLAY_KEYS = ("sort", "ascending", "top", "table", "statistic")
"""Settings that choose what is shown, without effect on what is stored."""
MANY = ("texts", "relations")
Choice = Mapping[str, Any]
"""Values of settings that select one of the surveys in a store."""


def kept_spec(spec: HeadsSpec) -> HeadsSpec:
    """The settings of the survey of one text as it is stored, with every statistic of every head."""
    off = {"texts": None, "text_group": None, "probe": None, "num_tokens": None}
    shown = {key: HeadsSpec.model_fields[key].default for key in ("ascending", "top", "table", "statistic")}
    return spec.model_copy(update={**off, **shown, "sort": None})


def _settings_of_survey(path: Path, reader: Reader, choice: Choice) -> tuple[int, dict[str, Any]]:
    """The number and the settings of the one survey in a store that has the chosen values.

    UserError if there is none, or several. Runs that read many texts each are not texts of a survey.
    """
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if settings["experiment"] == "heads" and not any(map(settings.get, MANY))
    }
    if not surveys:
        raise UserError(f"store: {path} has no survey of heads, text by text: attn results shows what it has")
    chosen = {
        number: settings
        for number, settings in surveys.items()
        if all(str(settings.get(key)) == str(value) for key, value in choice.items())
    }
    if len(chosen) != 1:
        differing = differing_settings((chosen or surveys).values())
        listed = "; ".join(f"{key} {', '.join(values)}" for key, values in differing.items())
        if not chosen:
            asked = ", ".join(f"{key} {value}" for key, value in choice.items())
            raise UserError(f"store: {path} has no survey of {asked}{f'; it has {listed}' if listed else ''}")
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in differing)
        raise UserError(f"store: {path} has {len(chosen)} surveys ({listed}): choose one by {flags}")
    ((number, settings),) = chosen.items()
    return number, settings


def _totals(reader: Reader, settings: int) -> HeadTotals:
    """The totals over the runs with these settings, each of which is a text."""
    totals = HeadTotals()
    for runs in reader.done():
        kept = [place for place, run in enumerate(runs.runs) if run.settings == settings]
        if kept:
            _add(totals, runs.columns, runs.values[kept])
    return totals


def _add(totals: HeadTotals, columns: Columns, values: np.ndarray) -> None:
    totals.num_texts += len(values)
    starts_special: dict[str, bool] = {}
    for place, column in enumerate(columns):
        if column.layer is None and (match := STACK.fullmatch(column.statistic)):
            stack = _where(match, 0)["stack"]
            if match[4]:
                totals.add_rows(stack, {match[3]: int(values[:, place].sum())})
            elif match[3] == STARTS_SPECIAL:
                starts_special[stack] = bool(values[:, place].all())
    for where, names, places in _layers(columns):
        totals.add_array(where, names, values[:, places], starts_special.get(where["stack"]))


def _layers(columns: Columns) -> list[tuple[Where, Sequence[str], np.ndarray]]:
    """Each layer, its statistics, and the places of their values (head, statistic)."""
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


def store_report(path: Path, reader: Reader, spec: HeadsSpec, choice: Choice) -> Report:
    """The survey in a store, the chosen one where there are several; `spec` says what is shown.

    UserError if there is none, or if the choice is not clear.
    """
    from attncli.commands.heads import report_of_totals

    number, settings = _settings_of_survey(path, reader, choice)
    totals = _totals(reader, number)
    left_out = {
        "of the texts failed and": sum(failed.run.settings == number for failed in reader.failed()),
        "of an earlier plan": reader.count_earlier(number),
    }
    notes = [
        f"{count:,} {which} {'is' if count == 1 else 'are'} left out."
        for which, count in left_out.items()
        if count
    ]
    shown = {key: getattr(spec, key) for key in DISPLAY_KEYS}
    read = {"texts": str(path), "sentence": None, "context": None}
    known = {key: value for key, value in settings.items() if key in HeadsSpec.model_fields}
    complete = HeadsSpec.model_construct(**{**known, **read, **shown})
    return report_of_totals(complete, totals, Path(str(complete.model_source())).name, notes)
