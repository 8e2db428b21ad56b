"""The survey of a model's heads: what each does, measured on a text or on a probe."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf

import torch

from attncli.errors import UserError
from attncli.experiments.ablate.named_heads import AblatedHeads
from attncli.experiments.attention_report import build_report, named
from attncli.experiments.reading.many_texts import ManyTexts
from attncli.experiments.reading.text_file import TextFile
from attncli.experiments.reading.text_words import WORDS_NOTE
from attncli.experiments.reading.texts import Texts
from attncli.experiments.relations.experiment import report_relations
from attncli.experiments.survey.examples import report_examples
from attncli.experiments.survey.found_heads import HeadRow, SurveyedText, found_texts
from attncli.experiments.survey.head_maps import sides
from attncli.experiments.survey.head_patterns import pattern_rows, strongest_rows
from attncli.experiments.survey.layers import Survey
from attncli.experiments.survey.reading import read, read_line
from attncli.experiments.survey.summary import (
    INTERVALS_NOTE,
    head_rows,
    stacks_of_totals,
    summary_tables,
    surveyed_heads,
)
from attncli.experiments.survey.totals import HeadTotals
from attncli.inputs.capture.capture import capture
from attncli.inputs.models.pretrained import Pretrained, Reading
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table
from attncli.row_statistics import PATTERNS
from attncli.spec.models.heads import HeadsSpec
from attncli.statistics.head_scores import sink_rate

__all__ = ["read", "report_each", "report_many"]

SINK_THRESHOLD = 0.3
EAGER_NOTE = (
    "This architecture gives its weights as dense matrices only: memory grows with the square of the tokens."
)
SHIPPED_NOTE = (
    "This model ships with attn; it learned to copy random characters. --model FOLDER takes another."
)


def _chosen(spec: HeadsSpec, rows: list[HeadRow]) -> Table:
    key = spec.sort
    if key is not None:
        sign = 1 if spec.ascending else -1
        rows = sorted(rows, key=lambda row: sign * row[key] if row[key] == row[key] else inf)
    return Table(rows[: spec.top])


def report_each(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The survey of each of some texts of equal counts."""
    if specs[0].rollout and pretrained.has_decoder:
        raise UserError(f"rollout: {pretrained.name} has an encoder and a decoder: rollout is for one stack")
    with ExitStack() as hooks:
        survey = Survey(specs, readings, pretrained, progress, hooks)
        taken_out = AblatedHeads(specs[0].ablate, pretrained, survey.take, hooks)
        how = capture(pretrained.model, pretrained.inputs(readings), taken_out.take)
    taken_out.check_all_found()
    texts = enumerate(zip(specs, readings, found_texts(survey), strict=True))
    reports = [_report(*one, survey, n, how) for n, one in texts]
    return [replace(report, notes=(*report.notes, *taken_out.notes())) for report in reports]


def report_many(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The survey of many texts: means over them, and how sure these are; of one head examples."""
    if spec.relations is not None:
        return report_relations(spec, pretrained, progress)
    if spec.head is not None:
        return report_examples(spec, pretrained, progress)
    assert spec.texts is not None
    with TextFile(spec.texts, spec.text_group) as file:
        count = file.count()
        many = ManyTexts(file, lambda line: read_line(spec, line, pretrained))
        totals, how = HeadTotals(), ""
        for batch in many.batches():
            readings = [reading for _, reading in batch]
            with ExitStack() as hooks:
                survey = Survey([spec] * len(batch), readings, pretrained, None, hooks)
                taken_out = AblatedHeads(spec.ablate, pretrained, survey.take, hooks)
                how = capture(pretrained.model, pretrained.inputs(readings), taken_out.take)
            taken_out.check_all_found()
            totals.add_survey(survey)
            if progress is not None:
                progress((many.num_read + many.num_left_out) / count)
    totals.num_tokens = many.num_tokens
    notes = [*many.notes(), *_how_notes(how), *taken_out.notes()]
    return report_of_totals(spec, totals, pretrained.name, notes)


def report_of_totals(spec: HeadsSpec, totals: HeadTotals, name: str, notes: Sequence[str]) -> Report:
    """The report of a survey of many texts."""
    heads, stacks = surveyed_heads(totals), stacks_of_totals(totals)
    rows = head_rows(heads, stacks)
    tables = {} if spec.statistic is not None else summary_tables(totals, heads, stacks)
    statistics, tensors = _parts(spec, rows, tables)
    statistics["texts"] = Numbers(num_texts=totals.num_texts, num_tokens=totals.num_tokens)
    read = "1 text" if totals.num_texts == 1 else f"{totals.num_texts:,} texts"
    if totals.num_tokens is not None:
        read += f" of {totals.num_tokens:,} tokens"
    all_notes = [*_notes(spec, name, len(rows), read), INTERVALS_NOTE, *notes]
    return build_report(spec, Texts(), tensors, statistics, all_notes)


def _parts(
    spec: HeadsSpec, rows: list[HeadRow], tables: dict[str, Statistic]
) -> tuple[dict[str, Statistic], dict[str, NamedTensor]]:
    """The heads, the tables about them and the sinks; of one statistic a grid instead."""
    first_key = torch.tensor([row["sink_mass"] for row in rows])
    sinks = Numbers(sink_rate=sink_rate(first_key, SINK_THRESHOLD), sink_threshold=SINK_THRESHOLD)
    statistics: dict[str, Statistic] = {"model": sinks}
    if spec.statistic is None:
        return {"heads": _chosen(spec, rows), **tables} | statistics, {}
    grids = Table(rows).grids(spec.statistic)
    return statistics, {f"{spec.statistic} {stack}".strip(): grid for stack, grid in grids.items()}


def _report(
    spec: HeadsSpec, whole: Reading, found: SurveyedText, survey: Survey, text: int, how: str
) -> Report:
    reading = whole.in_words()
    statistics, tensors = _parts(spec, found.rows, _patterns(found))
    if survey.rolled:
        tensors["rollout"] = named(survey.rolled[text], "query", "key")
    spelling = None if spec.words else survey.pretrained.token_spelling
    context = reading.context.tokens if reading.context is not None else ()
    read = Texts(reading.text.tokens, context, token_spelling=spelling)
    if survey.maps:
        tensors |= survey.maps[text].tensors()
        query, key = sides(spec, reading)
        read = read._replace(tokens=query.tokens, context_tokens=key.tokens if spec.maps == "cross" else ())
    count = f"{len(whole.text.ids)} tokens"
    if spec.words:
        count += f" of {len(reading.text.ids)} words"
    notes = _notes(spec, survey.pretrained.name, len(found.rows), count)
    notes += [*_how_notes(how), *whole.left_out_notes()]
    return build_report(spec, read, tensors, statistics, notes)


def _patterns(found: SurveyedText) -> dict[str, Statistic]:
    """What the heads do, by pattern; and on how many rows of the text every pattern stands."""
    patterns: list[Row] = []
    strongest: list[Row] = []
    for stack in found.stacks:
        heads = [row for row in found.rows if row["stack"] == stack.name]
        patterns += pattern_rows(heads, stack)
        strongest += strongest_rows(heads, stack, found.key_of)
    counted_names = {name for stack in found.stacks for name in stack.num_rows}
    counted = [
        {
            "stack": stack.name,
            **{name: stack.num_rows.get(name) for name in PATTERNS if name in counted_names},
        }
        for stack in found.stacks
    ]
    tables = {"patterns": Table(patterns), "strongest": Table(strongest), "pattern_rows": Table(counted)}
    return {name: table for name, table in tables.items() if table}


def _notes(spec: HeadsSpec, name: str, num_heads: int, read: str) -> list[str]:
    notes = [f"{name}: {num_heads} heads, on {read}."]
    if spec.model is None:
        notes.append(SHIPPED_NOTE)
    if spec.probe:
        notes.append(
            "The probe is [BOS] + r + r, r random tokens: what looks back to a first copy is induction."
        )
    if spec.skip_sink:
        keys = "key" if spec.skip_sink == 1 else f"{spec.skip_sink} keys"
        notes.append(f"Without the first {keys}, the other weights renormalised.")
    if spec.words:
        notes.append(WORDS_NOTE)
    if spec.weighted:
        notes.append("Weights are times ||v W_O||, each row renormalised; value_norm is the rows' mean sum.")
    return notes


def _how_notes(how: str) -> list[str]:
    return [EAGER_NOTE] if how == "eager" else []
