"""The survey of a model's heads: what each does, measured on a text, on a probe or on many texts."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf

import torch

from attncli.core.formulas import sink_rate
from attncli.errors import UserError
from attncli.measure.examples import report_examples
from attncli.measure.heads import Survey, SurveyedText, found_texts, read, read_line
from attncli.measure.patterns import HeadRow, pattern_rows, pattern_tables, strongest_rows
from attncli.measure.relations import report_relations
from attncli.measure.removal import AblatedHeads
from attncli.measure.totals import INTERVALS_NOTE, HeadTotals, summary_tables
from attncli.models.capture import capture
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.readings import WORDS_NOTE, ManyTexts
from attncli.models.text_files import TextFile
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table
from attncli.report_parts import build_report, named
from attncli.settings.heads import HeadsSpec
from attncli.settings.text import Texts

__all__ = ["read", "report_each", "report_many"]

SINK_THRESHOLD = 0.3
PROBE_NOTE = "The probe is [BOS] + r + r, r random tokens: what looks back to a first copy is induction."
WEIGHTED_NOTE = "Weights are times ||v W_O||, each row renormalised; value_norm is the rows' mean sum."
SHIPPED_NOTE = (
    "This model ships with attn; it learned to copy random characters. --model FOLDER takes another."
)


def report_each(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> list[Report]:
    """The survey of each of some texts of equal counts."""
    if specs[0].rollout and pretrained.has_decoder:
        raise UserError(f"rollout: {pretrained.name} has an encoder and a decoder: rollout is for one stack")
    survey, way_notes, ablated_notes = _surveyed(specs, readings, pretrained, progress)
    reports = []
    for text, (spec, reading, found) in enumerate(zip(specs, readings, found_texts(survey), strict=True)):
        notes = [*way_notes, *reading.left_out_notes(), *ablated_notes]
        reports.append(_report(spec, reading, found, survey, text, notes))
    return reports


def report_many(spec: HeadsSpec, pretrained: Pretrained, progress: Callable[[float], None] | None) -> Report:
    """The survey of many texts: means over them, and how sure these are; of one head examples."""
    if spec.relations is not None:
        return report_relations(spec, pretrained, progress)
    if spec.head is not None:
        return report_examples(spec, pretrained, progress)
    assert spec.texts is not None
    totals = HeadTotals()
    notes: dict[str, None] = {}
    with TextFile(spec.texts, spec.text_group) as file:
        many = ManyTexts(file, lambda line: read_line(spec, line, pretrained), progress)
        for batch in many.batches():
            readings = [reading for _, reading in batch]
            survey, way_notes, ablated_notes = _surveyed([spec] * len(batch), readings, pretrained, None)
            totals.add_survey(survey)
            notes |= dict.fromkeys([*way_notes, *ablated_notes])
    totals.num_tokens = many.num_tokens
    return report_of_totals(spec, totals, pretrained.name, [*many.notes(), *notes])


def _surveyed(
    specs: Sequence[HeadsSpec],
    readings: Sequence[Reading],
    pretrained: Pretrained,
    progress: Callable[[float], None] | None,
) -> tuple[Survey, list[str], list[str]]:
    """The survey of some texts of equal counts; notes on how the model ran, and on the ablated heads."""
    with ExitStack() as hooks:
        survey = Survey(specs, readings, pretrained, progress, hooks)
        ablated = AblatedHeads(specs[0].ablate, pretrained, survey.take, hooks)
        way = capture(pretrained.model, pretrained.inputs(readings), ablated.take)
    ablated.check_all_found()
    return survey, way.notes(), ablated.notes()


def report_of_totals(spec: HeadsSpec, totals: HeadTotals, name: str, notes: Sequence[str]) -> Report:
    """The report of a survey of many texts."""
    heads = totals.heads()
    rows = [head.row() for head in heads]
    statistics, tensors = _parts(spec, rows, summary_tables(heads, totals.stacks))
    statistics["texts"] = Numbers(num_texts=totals.num_texts, num_tokens=totals.num_tokens)
    read = "1 text" if totals.num_texts == 1 else f"{totals.num_texts:,} texts"
    if totals.num_tokens is not None:
        read += f" of {totals.num_tokens:,} tokens"
    all_notes = [*_notes(spec, name, len(rows), read), INTERVALS_NOTE, *notes]
    return build_report(spec, Texts(), tensors, statistics, all_notes)


def _parts(
    spec: HeadsSpec, rows: list[HeadRow], tables: Mapping[str, Table]
) -> tuple[dict[str, Statistic], dict[str, NamedTensor]]:
    """The heads, the tables about them and the sinks; of one statistic a grid instead."""
    first_key = torch.tensor([row["sink_mass"] for row in rows])
    sinks = Numbers(sink_rate=sink_rate(first_key, SINK_THRESHOLD), sink_threshold=SINK_THRESHOLD)
    if spec.statistic is not None:
        grids = Table(rows).grids(spec.statistic)
        return {"model": sinks}, {f"{spec.statistic} {stack}".strip(): grid for stack, grid in grids.items()}
    key, sign = spec.sort, 1 if spec.ascending else -1
    if key is not None:
        rows = sorted(rows, key=lambda row: sign * row[key] if row[key] == row[key] else inf)
    some = {name: table for name, table in tables.items() if table}
    return {"heads": Table(rows[: spec.top]), **some, "model": sinks}, {}


def _report(
    spec: HeadsSpec, whole: Reading, found: SurveyedText, survey: Survey, text: int, notes: Sequence[str]
) -> Report:
    reading = whole.in_words()
    statistics, tensors = _parts(spec, found.rows, _patterns(found))
    if survey.rolled:
        tensors["rollout"] = named(survey.rolled[text], "query", "key")
    spelling = None if spec.words else survey.pretrained.token_spelling
    tokens, context = reading.text.tokens, () if reading.context is None else reading.context.tokens
    if survey.maps:
        maps = survey.maps[text]
        tensors |= maps.tensors()
        tokens, context = maps.query.tokens, maps.key.tokens if spec.maps == "cross" else ()
    count = f"{len(whole.text.ids)} tokens"
    if spec.words:
        count += f" of {len(reading.text.ids)} words"
    all_notes = [*_notes(spec, survey.pretrained.name, len(found.rows), count), *notes]
    return build_report(spec, Texts(tokens, context, token_spelling=spelling), tensors, statistics, all_notes)


def _patterns(found: SurveyedText) -> dict[str, Table]:
    """What the heads do, by pattern, and how many rows of the text every pattern has."""
    patterns: list[Row] = []
    strongest: list[Row] = []
    for stack in found.stacks:
        heads = [row for row in found.rows if row["stack"] == stack.name]
        patterns += pattern_rows(heads, stack)
        strongest += strongest_rows(heads, stack, found.key_of)
    return pattern_tables(found.stacks, patterns, strongest)


def _notes(spec: HeadsSpec, name: str, num_heads: int, read: str) -> list[str]:
    keys = "key" if spec.skip_sink == 1 else f"{spec.skip_sink} keys"
    notes = {
        f"{name}: {num_heads} heads, on {read}.": True,
        SHIPPED_NOTE: spec.model is None,
        PROBE_NOTE: spec.probe,
        f"Without the first {keys}, the other weights renormalised.": spec.skip_sink,
        WORDS_NOTE: spec.words,
        WEIGHTED_NOTE: spec.weighted,
    }
    return [note for note, applies in notes.items() if applies]
