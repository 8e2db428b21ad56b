"""The heads of a model over many texts: what they do, with how sure that is."""

from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import GAP, Column, Grid
from attncli.views.tables.screens.heads.head_letters import head_count, pattern_name

DECIMALS = 2
PLACE_WIDTH = len("29:8 0.90 ±0.01")


def survey_grid(title: str, patterns: Sequence[Row], report: Report, width: int | None) -> Grid:
    """Letter and pattern, how many heads are named by it, what that rests on, and the strongest heads."""
    names = [pattern_name(row) for row in patterns]
    counts = [head_count(row) for row in patterns]
    rests = [[_whole(row[name]) for row in patterns] for name in ("texts", "rows")]
    columns = [
        Column(("", "heads"), counts),
        *(Column(("", name), cells) for name, cells in zip(("texts", "rows"), rests, strict=True)),
    ]
    label = Column(("", ""), names, left=True)
    room = (
        None if width is None else width - label.width - sum(column.width + GAP for column in columns) - GAP
    )
    strongest = [
        "too few rows; more texts measure it" if row["heads"] is None else _strongest(row, report, room)
        for row in patterns
    ]
    columns.append(Column(("", "strongest, ± half of its interval"), strongest, left=True))
    return Grid(plain_text(title), label, columns)


def _whole(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int) else NO_NUMBER


def _strongest(row: Row, report: Report, room: int | None) -> str:
    """The strongest heads with half of their intervals, as many as fit."""
    told = ""
    for head in report.table("strongest"):
        value, upper = head["value"], head["upper"]
        if any(head[name] != row[name] for name in ("stack", "pattern")) or not isinstance(value, float):
            continue
        if value < 0.5 * 10**-DECIMALS:
            continue
        half = f" ±{fixed(upper - value, DECIMALS)}" if isinstance(upper, float) and upper == upper else ""
        one = f"{head['layer']}:{head['head']} {fixed(value, DECIMALS)}{half}"
        longer = f"{told}  {one:<{PLACE_WIDTH}}" if told else f"{one:<{PLACE_WIDTH}}"
        if told and room is not None and cell_len(longer.rstrip()) > room:
            break
        told = longer
    return told.rstrip()


def half_widths(report: Report, heads: Sequence[Row], statistic: Any, precision: int) -> list[str] | None:
    """Half of the interval of a statistic of each of these heads; None where a report has no intervals."""
    where = ("stack", "layer", "head")
    halves = {
        tuple(row[name] for name in where): row
        for row in report.table("intervals")
        if row["statistic"] == statistic
    }
    if not halves:
        return None
    found = [halves.get(tuple(head.get(name) for name in where), {}) for head in heads]
    return [_half(row, precision) for row in found]


def _half(row: Row, precision: int) -> str:
    mean, upper = row.get("mean"), row.get("upper")
    if not isinstance(mean, float) or not isinstance(upper, float) or upper != upper:
        return NO_NUMBER
    return f"±{fixed(upper - mean, precision)}"
