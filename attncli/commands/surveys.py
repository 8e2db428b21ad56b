"""The report of a survey of many texts, from its totals or from a store that has each text.

Nothing here reads a model: a batch, whose workers did, shows its survey without importing what they needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic_core import PydanticSerializationError

from attncli.core.formulas import sink_rate
from attncli.core.names import HEAD_PATTERNS, STARTS_SPECIAL
from attncli.errors import UserError
from attncli.measure.patterns import HeadTotals, LayerPlace, MixerPlace, NumbersByName, heads_with
from attncli.records.columns import Records, few_notes
from attncli.records.kinds import KINDS
from attncli.records.report import PictureMaps, Report
from attncli.records.surveys import SIGNED_OVER_TEXTS, HeadSurvey, SinkRate, Stack, SurveyedHead, TextMean
from attncli.records.values import NamedTensor
from attncli.runs.connection import Damaged
from attncli.runs.reading import Reader, differing_settings
from attncli.runs.report_parts import WORDS_NOTE, build_report, shipped_notes
from attncli.runs.stored_columns import OF_LINEAR, UNSHOWN, StoredColumn, SurveyColumn, survey_columns_of
from attncli.settings import form_asked_for
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

SINK_THRESHOLD = 0.3
PROBE_NOTE = (
    "The probe is [BOS] + r + r with r random tokens; a head that finds what came after the first copy is an "
    "induction head."
)
WEIGHTED_NOTE = "Weights are times ||v W_O||, each row renormalised; value_norm is the rows' mean sum."
INTERVALS_NOTE = (
    "Means over {kind}s with 95 % intervals (Student's t): a head is named where its interval is above the "
    "threshold."
)


def report_of_totals(
    spec: HeadsSpec,
    totals: HeadTotals,
    name: str,
    notes: Sequence[str],
    picture_maps: Callable[[Records[SurveyedHead]], PictureMaps | None] = lambda heads: None,
    *,
    num_left_out: int = 0,
) -> Report:
    """The report of a survey of many texts; on grids with the maps of the heads that are listed."""
    survey, lower = totals.survey()
    num_heads = len(survey.heads)
    survey, none = of_pattern(spec, survey, lower, totals.stacks)
    survey, tensors = ranked(spec, survey)
    kind = "text" if spec.read_file is None else spec.read_file.what
    read = counted(totals.num_texts, kind)
    if num_left_out:
        read = f"{totals.num_texts:,} of {counted(totals.num_texts + num_left_out, kind)}"
    if totals.num_tokens is not None:
        read += f", {counted(totals.num_tokens, 'token')}"
    about_means = INTERVALS_NOTE.format(kind=kind)
    if totals.num_texts == 1:
        about_means = f"One {kind} has no interval, so that it names no head."
    all_notes = [*notes_of(spec), about_means, *few_notes(totals.num_texts, kind), *none, *notes]
    return build_report(
        spec,
        Texts(),
        tensors,
        survey,
        all_notes,
        about=about_heads(name, num_heads, read),
        picture_maps=picture_maps(survey.heads),
    )


def of_pattern(
    spec: HeadsSpec, survey: HeadSurvey, numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> tuple[HeadSurvey, list[str]]:
    """The heads of the pattern that is asked for, by the numbers that name them; a note where none has it."""
    if spec.pattern is None:
        return survey, []
    heads = survey.heads.taken(
        heads_with(spec.pattern, survey.heads.column("stack").tolist(), numbers, stacks)
    )
    statistic, threshold, *_ = HEAD_PATTERNS[spec.pattern]
    measured = (stack for stack in stacks.values() if spec.pattern in stack.patterns())
    few = not any(stack.has_enough_rows(statistic) for stack in measured)
    why = "too few rows of the text have it to tell" if few else f"none is above {threshold}"
    notes = [] if heads else [f"No head of this pattern, {spec.pattern}: {why}."]
    return replace(survey, heads=heads), notes


def ranked(spec: HeadsSpec, survey: HeadSurvey) -> tuple[HeadSurvey, dict[str, NamedTensor]]:
    """The survey with its heads in the order that is asked for, and the sinks; of one statistic a grid."""
    heads = survey.heads
    first_key = heads.column("sink_mass") if heads else np.empty(0)
    survey = replace(survey, model=sinks_of(torch.from_numpy(first_key)))
    if spec.statistic is not None:
        grids = heads.grids(spec.statistic)
        return HeadSurvey(model=survey.model, texts=survey.texts), {
            f"{spec.statistic} {stack}".strip(): grid for stack, grid in grids.items()
        }
    if spec.sort is not None:
        numbers = heads.column(spec.sort)
        order = np.argsort(numbers if spec.ascending else -numbers, kind="stable")
        heads = heads.taken(order.tolist())
    return replace(survey, heads=heads[: spec.top]), {}


def sinks_of(first_key: torch.Tensor) -> SinkRate:
    """The share of heads whose mean weight on the first key is above the threshold."""
    rate = sink_rate(first_key.float(), SINK_THRESHOLD)
    return SinkRate.single(sink_rate=rate, sink_threshold=SINK_THRESHOLD)


def ablated_notes(heads: Sequence[str]) -> list[str]:
    """Which heads gave nothing meanwhile."""
    if not heads:
        return []
    word, their = ("head", "its") if len(heads) == 1 else ("heads", "their")
    return [f"Without {word} {', '.join(heads)}: as if {their} columns of W_O were zero."]


def about_heads(name: str, num_heads: int, read: str) -> str:
    return f"{name}: {counted(num_heads, 'head')}, on {read}."


def notes_of(spec: HeadsSpec) -> list[str]:
    keys = "key" if spec.skip_sink == 1 else f"{spec.skip_sink} keys"
    notes = {
        PROBE_NOTE: spec.probe,
        f"Without the first {keys}, the other weights renormalised.": spec.skip_sink,
        WORDS_NOTE: spec.words,
        WEIGHTED_NOTE: spec.weighted,
    }
    return [*shipped_notes(spec), *(note for note, applies in notes.items() if applies)]


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
        kept = [place for place, run in enumerate(runs.runs) if run.settings == settings]
        if kept:
            columns = survey_columns_of(runs.columns)
            has_even &= any(column.number.is_even for column in columns.of_all)
            _add(totals, columns.of_all, runs.values[kept])
            if columns.of_rest:
                _add(rest, columns.of_rest, runs.values[kept])
            _add_linear(totals, columns.of_linear, runs.values[kept])
    # A store of before (0.2.0) does not have it, and one that was continued has it of some texts.
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
        if stack not in starts_special:
            is_special = _starts_special_before(tuple(names), of_layer)
            totals.add_rows(Stack(stack, {}, is_special))
    for stack in dict.fromkeys([*num_rows, *starts_special]):
        is_special = starts_special.get(stack, True)
        totals.add_rows(Stack(stack, num_rows.get(stack, {}), is_special, even.get(stack, {})))


def _add_linear(totals: HeadTotals, columns: Sequence[tuple[int, StoredColumn]], values: np.ndarray) -> None:
    """Add the heads of layers without a softmax of runs with the same columns (run, column)."""
    places: dict[int, dict[int, dict[str, int]]] = {}
    for place, (name, layer, head, *_) in columns:
        if layer is not None and head is not None:
            of_layer = places.setdefault(layer, {})
            of_layer.setdefault(head, {})[name.removeprefix(OF_LINEAR)] = place
    for layer, heads in places.items():
        numbers = [[values[:, of_head[name]] for name in SIGNED_OVER_TEXTS] for of_head in heads.values()]
        totals.linear.add(MixerPlace(layer), torch.from_numpy(np.array(numbers)).permute(2, 0, 1))


ROUNDING = 1e-4
"""By how much two means of float32 may differ."""


def _starts_special_before(names: Sequence[str], of_layer: np.ndarray) -> bool:
    """Whether texts begin with a special token, in a store of before (0.2.0), which did not keep it.

    No head has more weight on the first token than on special ones where it is one; nothing tells where the
    first keys are left out.
    """
    lead = of_layer[..., names.index("special_mass")] - of_layer[..., names.index("sink_mass")]
    return not (lead < -ROUNDING).any() and not np.isnan(lead).all()


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
