"""A survey of many texts as tables: means over texts with their 95 % intervals, and what names a head."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attncli.experiments.survey.found_heads import HeadRow
from attncli.experiments.survey.head_patterns import Stack, pattern_of, pattern_rows, strongest_rows
from attncli.experiments.survey.totals import NOT_FIRST, HeadTotals, LayerTotals
from attncli.report import Row, Statistic, Table
from attncli.row_statistics import PATTERNS
from attncli.statistics.intervals import mean_interval

INTERVALS_NOTE = (
    "Means over texts with 95 % intervals (Student's t): a head is named where its interval is above the "
    "threshold."
)


class SurveyedHead(NamedTuple):
    """A head with its statistics by name: means, the two ends of the interval, and texts that have it."""

    where: HeadRow
    mean: dict[str, float]
    lower: dict[str, float]
    upper: dict[str, float]
    texts: dict[str, int]


def surveyed_heads(totals: HeadTotals) -> list[SurveyedHead]:
    """Every head in the order of the layers; NaN for what no text, or a single one, has."""
    return [head for layer in totals.layers.values() for head in _heads(layer)]


def _heads(layer: LayerTotals) -> Iterator[SurveyedHead]:
    moments = layer.moments
    ends = mean_interval(moments.count, moments.mean, moments.squares)
    means = moments.mean.where(moments.count > 0, float("nan"))
    tables = [tensor.tolist() for tensor in (means, *ends, moments.count)]
    for head, numbers in enumerate(zip(*tables, strict=True)):
        mean, lower, upper, texts = (dict(zip(layer.names, row, strict=True)) for row in numbers)
        yield SurveyedHead({**layer.where, "head": head}, mean, lower, upper, texts)


def head_rows(heads: list[SurveyedHead], stacks: Mapping[str, Stack]) -> list[HeadRow]:
    """A row for each head with its means, named by the lower ends of its intervals."""
    rows = []
    for head in heads:
        means = {name: mean for name, mean in head.mean.items() if name != NOT_FIRST}
        rows.append({**head.where, "pattern": pattern_of(head.lower, stacks[head.where["stack"]]), **means})
    return rows


def stacks_of_totals(totals: HeadTotals) -> dict[str, Stack]:
    """What the patterns of each stack stand on, over all texts."""
    return {
        name: Stack(name, dict(totals.num_rows[name]), starts_special)
        for name, starts_special in totals.starts_special.items()
    }


def summary_tables(
    totals: HeadTotals, heads: list[SurveyedHead], stacks: Mapping[str, Stack]
) -> dict[str, Statistic]:
    """What heads do, by pattern; every interval; and on how many rows the statistics of a stack stand."""
    patterns: list[Row] = []
    strongest: list[Row] = []
    by_place = {_place(head.where): head for head in heads}
    for name, stack in stacks.items():
        own = [head for head in heads if head.where["stack"] == name]
        named = [{**head.where, **head.lower, "pattern": pattern_of(head.lower, stack)} for head in own]
        for row in pattern_rows(named, stack):
            statistic = row["statistic"]
            texts = max((head.texts.get(str(statistic), 0) for head in own), default=0) if statistic else None
            patterns.append({**row, "texts": texts})
        for row in strongest_rows([{**head.where, **head.mean} for head in own], stack, lambda _: None):
            head = by_place[row["layer"], row["head"], name]
            statistic = stack.name_of(stack.patterns()[str(row["pattern"])].statistic)
            strongest.append({**row, "lower": head.lower[statistic], "upper": head.upper[statistic]})
    tables = {
        "patterns": Table(patterns),
        "strongest": Table(strongest),
        "pattern_rows": Table(_row_counts(totals)),
        "intervals": Table(_interval_rows(heads, stacks)),
    }
    return {name: table for name, table in tables.items() if table}


def _place(where: Mapping[str, Any]) -> tuple[Any, ...]:
    return where["layer"], where["head"], where["stack"]


def _row_counts(totals: HeadTotals) -> Iterator[Row]:
    counted = {name for num_rows in totals.num_rows.values() for name in num_rows}
    for stack, num_rows in totals.num_rows.items():
        yield {"stack": stack, **{name: num_rows.get(name) for name in PATTERNS if name in counted}}


def _interval_rows(heads: list[SurveyedHead], stacks: Mapping[str, Stack]) -> Iterator[Row]:
    for head in heads:
        where = {name: head.where[name] for name in ("stack", "layer", "head")}
        unsaid = "" if stacks[where["stack"]].starts_special else NOT_FIRST
        for name, mean in head.mean.items():
            if name != unsaid:
                ends = {"lower": head.lower[name], "upper": head.upper[name]}
                yield {**where, "statistic": name, "mean": mean, **ends, "texts": head.texts[name]}
