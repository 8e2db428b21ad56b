"""The report of a survey of many texts, from its totals.

No model is read here, so that a batch can show a survey without importing the code that its workers needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from attncli.commands.surveys import INTERVALS_NOTE, sink_heads_rate, survey_title
from attncli.core.names import HEAD_PATTERNS
from attncli.measure.patterns import HeadTotals, NumbersByName, heads_with
from attncli.records.columns import Records, few_notes
from attncli.records.report import PictureMaps, Report
from attncli.records.surveys import HeadSurvey, Stack, SurveyedHead
from attncli.records.values import NamedTensor
from attncli.runs.report_parts import WORDS_NOTE, build_report, shipped_notes
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts
from attncli.system.plain_text import counted

PROBE_NOTE = (
    "The probe is [BOS] + r + r, where r is a sequence of random tokens; an induction head looks at what "
    "followed the same token in the first copy."
)
WEIGHTED_NOTE = (
    "Weights are multiplied by ||v W_O||, and each row is renormalised; value_norm is the mean sum of the "
    "rows."
)


def totals_report(
    spec: HeadsSpec,
    totals: HeadTotals,
    name: str,
    notes: Sequence[str],
    picture_maps: Callable[[Records[SurveyedHead]], PictureMaps | None] = lambda heads: None,
    *,
    num_left_out: int = 0,
) -> Report:
    """Return the report of a survey of many texts, with maps of the listed heads for files with a grid."""
    survey, lower = totals.survey()
    num_heads = len(survey.heads)
    survey, none = with_pattern(spec, survey, lower, totals.stacks)
    survey, tensors = ranked(spec, survey)
    kind = "text" if spec.read_file is None else spec.read_file.what
    read = counted(totals.num_texts, kind)
    if num_left_out:
        read = f"{totals.num_texts:,} of {counted(totals.num_texts + num_left_out, kind)}"
    if totals.num_tokens is not None:
        read += f", {counted(totals.num_tokens, 'token')}"
    about_means = INTERVALS_NOTE.format(kind=kind)
    if totals.num_texts == 1:
        about_means = f"One {kind} gives no interval, so no head is named."
    all_notes = [*survey_notes(spec), about_means, *few_notes(totals.num_texts, kind), *none, *notes]
    return build_report(
        spec,
        Texts(),
        tensors,
        survey,
        all_notes,
        about=survey_title(name, num_heads, read),
        picture_maps=picture_maps(survey.heads),
    )


def with_pattern(
    spec: HeadsSpec, survey: HeadSurvey, numbers: NumbersByName, stacks: Mapping[str, Stack]
) -> tuple[HeadSurvey, list[str]]:
    """Return the heads with the chosen pattern, judged by `numbers`, and a note if no head has it."""
    if spec.pattern is None:
        return survey, []
    heads = survey.heads.taken(
        heads_with(spec.pattern, survey.heads.column("stack").tolist(), numbers, stacks)
    )
    statistic, threshold, *_ = HEAD_PATTERNS[spec.pattern]
    measured = (stack for stack in stacks.values() if spec.pattern in stack.patterns())
    few = not any(stack.has_enough_rows(statistic) for stack in measured)
    why = "too few rows of the text show it" if few else f"no score is above {threshold}"
    notes = [] if heads else [f"No head has this pattern, {spec.pattern}: {why}."]
    return replace(survey, heads=heads), notes


def ranked(spec: HeadsSpec, survey: HeadSurvey) -> tuple[HeadSurvey, dict[str, NamedTensor]]:
    """Return the survey with its heads sorted and its sinks added, or the grid of a single statistic."""
    heads = survey.heads
    first_key = heads.column("sink_mass") if heads else np.empty(0)
    survey = replace(survey, model=sink_heads_rate(torch.from_numpy(first_key)))
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


def survey_notes(spec: HeadsSpec) -> list[str]:
    keys = "key" if spec.skip_sink == 1 else f"{spec.skip_sink} keys"
    notes = {
        PROBE_NOTE: spec.probe,
        f"Without the first {keys}; the other weights are renormalised.": spec.skip_sink,
        WORDS_NOTE: spec.words,
        WEIGHTED_NOTE: spec.weighted,
    }
    return [*shipped_notes(spec), *(note for note, applies in notes.items() if applies)]
