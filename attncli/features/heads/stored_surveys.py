"""The report of a stored survey, from the numbers stored for each text."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import PydanticSerializationError

from attncli.core.names import STARTS_SPECIAL
from attncli.errors import UserError
from attncli.features.heads.surveys import totals_report
from attncli.measure.patterns import HeadTotals, LayerPlace, MixerPlace
from attncli.records.kinds import KINDS
from attncli.records.report import Report
from attncli.records.stored_columns import (
    LINEAR_PREFIX,
    UNSHOWN,
    StoredColumn,
    SurveyColumn,
    parse_survey_columns,
)
from attncli.records.surveys import SIGNED_OVER_TEXTS, HeadSurvey, Stack, TextMean
from attncli.runs.connection import Damaged
from attncli.runs.reading import Reader, differing_settings
from attncli.settings import matching_form
from attncli.settings.heads import HeadsSpec
from attncli.system.plain_text import counted

HEAD_CHOICES = ("top", "pattern", "statistic")
"""Settings that leave out heads of a survey."""


def _head_choices(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings in use that leave heads out of a survey."""
    return [key for key in HEAD_CHOICES if settings.get(key) is not None]


def _is_survey(experiment: str) -> bool:
    """Return True for an experiment whose result is a survey of heads."""
    kind = KINDS.get(experiment)
    return kind is not None and issubclass(kind, HeadSurvey)


def _survey_settings(path: Path, reader: Reader, choice: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Return the number and the settings of the only stored survey that has the chosen values.

    Raises UserError unless exactly one survey has these values. Runs that each read many texts do not count.
    """
    if reader.has_steps():
        raise UserError(f"--store: {path} has steps of a training run: use attn watch {path} to show them")
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if _is_survey(settings["experiment"])
        and not settings.get("texts")
        and matching_form(settings["experiment"], settings) is None
    }
    if surveys and all(map(_head_choices, surveys.values())):
        keys = ", ".join(dict.fromkeys(chain.from_iterable(map(_head_choices, surveys.values()))))
        raise UserError(
            f"--store: {path} has only some heads of each text, left by {keys}: use attn results to show them"
        )
    surveys = {number: settings for number, settings in surveys.items() if not _head_choices(settings)}
    if not surveys:
        raise UserError(
            f"--store: {path} has no survey of heads, text by text: use attn results to see what it has"
        )
    chosen = {
        number: settings
        for number, settings in surveys.items()
        if all(str(settings.get(key)) == str(value) for key, value in choice.items())
    }
    if len(chosen) != 1:
        differing = differing_settings((chosen or surveys).values())
        listed = "; ".join(f"{key} {', '.join(values)}" for key, values in differing.items())
        if not chosen:
            request = ", ".join(f"{key} {value}" for key, value in choice.items())
            details = f"; it has {listed}" if listed else ""
            if num_earlier := reader.count_earlier():
                runs = counted(num_earlier, "run")
                details += f"; {runs} of earlier plans: rerun their command to read them"
            raise UserError(f"--store: {path} has no survey with {request}{details}")
        several = f"--store: {path} has {len(chosen)} surveys ({listed})"
        if not differing.keys() <= HeadsSpec.model_fields.keys():
            raise UserError(
                f"{several}: use attn results {path} to show the surveys side by side, "
                "or store each survey in a separate file to see its patterns"
            )
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in differing)
        raise UserError(f"{several}: choose one by {flags}")
    ((number, settings),) = chosen.items()
    return number, settings


def _totals(reader: Reader, settings: int) -> HeadTotals:
    """Return the totals over the runs with these settings, where each run is one text."""
    totals, without_first, has_even = HeadTotals(), HeadTotals(), True
    for runs in reader.done():
        places = [place for place, number in enumerate(runs.settings) if number == settings]
        if places:
            columns = parse_survey_columns(runs.columns)
            has_even &= any(column.number.is_even for column in columns.all_weights)
            _add(totals, columns.all_weights, runs.values[places])
            if columns.without_first:
                _add(without_first, columns.without_first, runs.values[places])
            _add_linear(totals, columns.linear, runs.values[places])
    totals.rest = without_first if without_first.num_texts == totals.num_texts else None
    if not has_even:  # a store from before 0.5.0, or a store that a later version continued
        for head_totals in (totals, without_first):
            head_totals.stacks = {name: stack._replace(even={}) for name, stack in head_totals.stacks.items()}
    return totals


def _add(totals: HeadTotals, columns: Sequence[SurveyColumn], values: np.ndarray) -> None:
    """Add runs with the same columns (run, column); each run is one text."""
    totals.num_texts += len(values)
    starts_special: dict[str, bool] = {}
    num_rows: dict[str, dict[str, int]] = {}
    even: dict[str, dict[str, TextMean]] = {}
    layers: dict[tuple[int, str], dict[int, dict[str, int]]] = {}
    for number, place, layer, head in columns:
        stack, statistic = number.stack, number.statistic
        if layer is not None and head is not None:
            layers.setdefault((layer, stack), {}).setdefault(head, {})[statistic] = place
        elif statistic == STARTS_SPECIAL:
            starts_special[stack] = bool(values[:, place].all())
        elif number.counts_rows:
            num_rows.setdefault(stack, {})[statistic] = int(values[:, place].sum())
        elif number.is_even:
            text_values = values[:, place]
            has_value = ~np.isnan(text_values)
            mean = TextMean(float(text_values[has_value].sum()), int(has_value.sum()))
            even.setdefault(stack, {})[statistic] = mean
    for (layer, stack), heads in layers.items():
        (names, *_), places = heads.values(), np.array([list(head.values()) for head in heads.values()])
        layer_values = values[:, places]
        kind = "cross" if stack == "cross" else "self"
        totals.add(LayerPlace(layer, kind, stack), tuple(names), torch.from_numpy(layer_values))
    for stack in dict.fromkeys([*num_rows, *starts_special]):
        is_special = starts_special.get(stack, True)
        totals.add_rows(Stack(stack, num_rows.get(stack, {}), is_special, even.get(stack, {})))


def _add_linear(totals: HeadTotals, columns: Sequence[tuple[int, StoredColumn]], values: np.ndarray) -> None:
    """Add the heads of layers without a softmax, from runs with the same columns (run, column)."""
    places: dict[int, dict[int, dict[str, int]]] = {}
    for place, (name, layer, head, *_) in columns:
        if layer is not None and head is not None:
            places.setdefault(layer, {}).setdefault(head, {})[name.removeprefix(LINEAR_PREFIX)] = place
    for layer, heads in places.items():
        numbers = [[values[:, head[name]] for name in SIGNED_OVER_TEXTS] for head in heads.values()]
        totals.linear.add(MixerPlace(layer), torch.from_numpy(np.array(numbers)).permute(2, 0, 1))


def store_report(path: Path, reader: Reader, display: Mapping[str, Any], choice: Mapping[str, Any]) -> Report:
    """Return the stored survey that has the chosen settings, with these display settings.

    Raises UserError unless exactly one survey has these settings, and Damaged for settings of the wrong
    types.
    """
    number, settings = _survey_settings(path, reader, choice)
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
    read = {"texts": str(path), "sentence": None, "context": None}
    model_settings = {key: value for key, value in settings.items() if key in HeadsSpec.model_fields}
    program = "" if "model" in settings else str(settings.get("program", ""))
    if program:
        model_settings = {"model": program}
    try:
        HeadsSpec.model_construct(**model_settings).model_dump(warnings="error")
    except PydanticSerializationError:
        raise Damaged("the settings of its survey are damaged") from None
    complete = HeadsSpec.model_construct(**{**model_settings, **read, **display})
    report_name = program or Path(str(complete.model_source())).name
    report = totals_report(complete, totals, report_name, notes, num_left_out=sum(left_out.values()))
    missing = dict.fromkeys(environment.get(UNSHOWN, "") for environment in reader.environments())
    return replace(report, missing=" ".join(filter(None, missing)))
