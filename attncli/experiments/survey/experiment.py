"""The survey of a model's heads: what each does, measured on a text or on a probe."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf

import torch

from attncli.errors import UserError
from attncli.experiments.attention_report import build_report, named
from attncli.experiments.survey.head_maps import sides
from attncli.experiments.survey.head_patterns import pattern_rows, strongest_rows
from attncli.experiments.survey.layers import HeadRow, Survey, SurveyedText
from attncli.experiments.survey.named_places import check_places
from attncli.experiments.texts import Texts
from attncli.inputs.capture import capture
from attncli.inputs.pretrained import Pretrained, Reading
from attncli.inputs.probes import repeated_probe
from attncli.memory import refuse_bytes
from attncli.report import NamedTensor, Numbers, Report, Row, Statistic, Table
from attncli.row_statistics import PATTERNS
from attncli.spec.heads import HeadsSpec
from attncli.statistics.head_scores import sink_rate

SINK_THRESHOLD = 0.3
BYTES_PER_ROLLED_WEIGHT = 40
EAGER_NOTE = (
    "This architecture gives its weights as dense matrices only: memory grows with the square of the tokens."
)


def read(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    """What the model reads, and its encoder where there is a decoder; UserError for what does not fit."""
    reading = _reading(spec, texts, pretrained, generator)
    fewest = min(count for count in reading.counts if count)
    if spec.skip_sink >= fewest:
        raise UserError(f"skip_sink: must be below {fewest}, the number of tokens (got {spec.skip_sink})")
    check_places(spec, reading, pretrained)
    if spec.rollout:
        refuse_bytes(spec.experiment, reading.counts[0] ** 2 * BYTES_PER_ROLLED_WEIGHT, "fewer tokens")
    return reading


def _reading(spec: HeadsSpec, texts: Texts, pretrained: Pretrained, generator: torch.Generator) -> Reading:
    if spec.probe:
        probe = repeated_probe(pretrained, int(spec.num_tokens or 0), generator)
        return Reading(probe, probe if pretrained.has_decoder else None)
    assert texts.text is not None
    text = pretrained.read(texts.text, "file" if spec.file else "sentence", truncate=spec.truncate)
    if not pretrained.has_decoder:
        if texts.context is not None:
            raise UserError(f"context: {pretrained.name} has no decoder: it reads one text")
        return Reading(text)
    context = text
    if texts.context is not None:
        context = pretrained.read(texts.context, "context", truncate=spec.truncate)
    return Reading(pretrained.shifted_right(text), context)


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
        how = capture(pretrained.model, pretrained.inputs(readings), survey.take)
    texts = zip(specs, readings, survey.found(), strict=True)
    return [_report(spec, reading, survey, found, n, how) for n, (spec, reading, found) in enumerate(texts)]


def _report(
    spec: HeadsSpec, reading: Reading, survey: Survey, found: SurveyedText, text: int, how: str
) -> Report:
    rows = found.rows
    first_key = torch.tensor([row["sink_mass"] for row in rows])
    sinks = Numbers(sink_rate=sink_rate(first_key, SINK_THRESHOLD), sink_threshold=SINK_THRESHOLD)
    statistics: dict[str, Statistic] = {"model": sinks}
    tensors: dict[str, NamedTensor] = {}
    if spec.statistic is None:
        statistics = {"heads": _chosen(spec, rows), **_patterns(found)} | statistics
    else:
        grids = Table(rows).grids(spec.statistic)
        tensors |= {f"{spec.statistic} {stack}".strip(): grid for stack, grid in grids.items()}
    if survey.rolled:
        tensors["rollout"] = named(survey.rolled[text], "query", "key")
    spelling = survey.pretrained.token_spelling
    context = reading.context.tokens if reading.context is not None else ()
    read = Texts(reading.text.tokens, context, token_spelling=spelling)
    if survey.maps:
        tensors |= survey.maps[text].tensors()
        query, key = sides(spec, reading)
        read = read._replace(tokens=query.tokens, context_tokens=key.tokens if spec.maps == "cross" else ())
    notes = _notes(spec, len(rows), len(reading.text.ids), survey.pretrained.name, how)
    notes += reading.left_out_notes()
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


def _notes(spec: HeadsSpec, num_heads: int, num_tokens: int, name: str, how: str) -> list[str]:
    notes = [f"{name}: {num_heads} heads, on {num_tokens} tokens."]
    if spec.model is None:
        notes.append(
            "This model ships with attn; it learned to copy random characters. --model FOLDER takes another."
        )
    if spec.probe:
        notes.append(
            "The probe is [BOS] + r + r, r random tokens: what looks back to a first copy is induction."
        )
    if spec.skip_sink:
        keys = "key" if spec.skip_sink == 1 else f"{spec.skip_sink} keys"
        notes.append(f"Without the first {keys}, the other weights renormalised.")
    if spec.weighted:
        notes.append("Weights are times ||v W_O||, each row renormalised; value_norm is the rows' mean sum.")
    if how == "eager":
        notes.append(EAGER_NOTE)
    return notes
