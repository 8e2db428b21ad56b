"""The report of a survey in a store that has each text."""

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
from attncli.features.heads.surveys import report_of_totals
from attncli.measure.patterns import HeadTotals, LayerPlace, MixerPlace
from attncli.records.kinds import KINDS
from attncli.records.report import Report
from attncli.records.surveys import SIGNED_OVER_TEXTS, HeadSurvey, Stack, TextMean
from attncli.runs.connection import Damaged
from attncli.runs.reading import Reader, differing_settings
from attncli.runs.stored_columns import (
    LINEAR_PREFIX,
    UNSHOWN,
    StoredColumn,
    SurveyColumn,
    parse_survey_columns,
)
from attncli.settings import form_asked_for
from attncli.settings.heads import HeadsSpec
from attncli.system.plain_text import counted

OF_SOME_HEADS = ("top", "pattern", "statistic")
"""Settings that leave out heads of a survey."""


def _of_some_heads(settings: Mapping[str, Any]) -> list[str]:
    """The given settings that leave out heads of a survey."""
    return [key for key in OF_SOME_HEADS if settings.get(key) is not None]


def _is_survey(experiment: str) -> bool:
    """True for an experiment whose result is a survey of heads."""
    kind = KINDS.get(experiment)
    return kind is not None and issubclass(kind, HeadSurvey)


def _settings_of_survey(path: Path, reader: Reader, choice: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The number and the settings of the one survey in a store that has the chosen values.

    UserError if there is none, or several. Runs that read many texts each are not texts of a survey.
    """
    if reader.has_steps():
        raise UserError(f"--store: {path} has steps of a training run: attn watch {path} shows them")
    surveys = {
        number: settings
        for number, settings in reader.settings_in_use().items()
        if _is_survey(settings["experiment"])
        and not settings.get("texts")
        and form_asked_for(settings["experiment"], settings) is None
    }
    if surveys and all(map(_of_some_heads, surveys.values())):
        keys = ", ".join(dict.fromkeys(chain.from_iterable(map(_of_some_heads, surveys.values()))))
        raise UserError(
            f"--store: {path} has only some heads of each text, left by {keys}: attn results shows them"
        )
    surveys = {number: settings for number, settings in surveys.items() if not _of_some_heads(settings)}
    if not surveys:
        raise UserError(
            f"--store: {path} has no survey of heads, text by text: attn results shows what it has"
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
            asked = ", ".join(f"{key} {value}" for key, value in choice.items())
            others = f"; it has {listed}" if listed else ""
            if num_earlier := reader.count_earlier():
                runs = counted(num_earlier, "run")
                others += f"; {runs} of earlier plans: rerun their command to read them"
            raise UserError(f"--store: {path} has no survey of {asked}{others}")
        several = f"--store: {path} has {len(chosen)} surveys ({listed})"
        if not differing.keys() <= HeadsSpec.model_fields.keys():
            raise UserError(
                f"{several}: attn results {path} shows them side by side; "
                "of each in a store of its own this shows the patterns"
            )
        flags = " and ".join(f"--{key.replace('_', '-')}" for key in differing)
        raise UserError(f"{several}: choose one by {flags}")
    ((number, settings),) = chosen.items()
    return number, settings


def _totals(reader: Reader, settings: int) -> HeadTotals:
    """The totals over the runs with these settings, each of which is a text."""
    totals, rest, has_even = HeadTotals(), HeadTotals(), True
    for runs in reader.done():
        kept = [place for place, number in enumerate(runs.settings) if number == settings]
        if kept:
            columns = parse_survey_columns(runs.columns)
            has_even &= any(column.number.is_even for column in columns.all_weights)
            _add(totals, columns.all_weights, runs.values[kept])
            if columns.without_first:
                _add(rest, columns.without_first, runs.values[kept])
            _add_linear(totals, columns.linear, runs.values[kept])
    totals.rest = rest if rest.num_texts == totals.num_texts else None
    if not has_even:  # a store before 0.5.0, or one that was continued
        for of_some in (totals, rest):
            of_some.stacks = {name: stack._replace(even={}) for name, stack in of_some.stacks.items()}
    return totals


def _add(totals: HeadTotals, columns: Sequence[SurveyColumn], values: np.ndarray) -> None:
    """Add runs with the same columns (run, column), each of which is a text."""
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
            of_texts = values[:, place]
            known = ~np.isnan(of_texts)
            mean = TextMean(float(of_texts[known].sum()), int(known.sum()))
            even.setdefault(stack, {})[statistic] = mean
    for (layer, stack), heads in layers.items():
        (names, *_), places = heads.values(), np.array([list(head.values()) for head in heads.values()])
        of_layer = values[:, places]
        kind = "cross" if stack == "cross" else "self"
        totals.add(LayerPlace(layer, kind, stack), tuple(names), torch.from_numpy(of_layer))
    for stack in dict.fromkeys([*num_rows, *starts_special]):
        is_special = starts_special.get(stack, True)
        totals.add_rows(Stack(stack, num_rows.get(stack, {}), is_special, even.get(stack, {})))


def _add_linear(totals: HeadTotals, columns: Sequence[tuple[int, StoredColumn]], values: np.ndarray) -> None:
    """Add the heads of layers without a softmax of runs with the same columns (run, column)."""
    places: dict[int, dict[int, dict[str, int]]] = {}
    for place, (name, layer, head, *_) in columns:
        if layer is not None and head is not None:
            of_layer = places.setdefault(layer, {})
            of_layer.setdefault(head, {})[name.removeprefix(LINEAR_PREFIX)] = place
    for layer, heads in places.items():
        numbers = [[values[:, of_head[name]] for name in SIGNED_OVER_TEXTS] for of_head in heads.values()]
        totals.linear.add(MixerPlace(layer), torch.from_numpy(np.array(numbers)).permute(2, 0, 1))


def store_report(path: Path, reader: Reader, shown: Mapping[str, Any], choice: Mapping[str, Any]) -> Report:
    """The survey in a store, the one with the chosen settings where there are several, as `shown` says.

    UserError if there is none, or if the choice is not clear; Damaged where settings are of other types.
    """
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
    read = {"texts": str(path), "sentence": None, "context": None}
    known = {key: value for key, value in settings.items() if key in HeadsSpec.model_fields}
    program = "" if "model" in settings else str(settings.get("program", ""))
    if program:
        known = {"model": program}
    try:
        HeadsSpec.model_construct(**known).model_dump(warnings="error")
    except PydanticSerializationError:
        raise Damaged("the settings of its survey are damaged") from None
    complete = HeadsSpec.model_construct(**{**known, **read, **shown})
    report_name = program or Path(str(complete.model_source())).name
    report = report_of_totals(complete, totals, report_name, notes, num_left_out=sum(left_out.values()))
    missing = dict.fromkeys(environment.get(UNSHOWN, "") for environment in reader.environments())
    return replace(report, missing=" ".join(filter(None, missing)))
