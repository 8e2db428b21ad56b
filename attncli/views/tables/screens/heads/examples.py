"""Examples of one head: a text a line, with the query and the keys that it looks at marked in it."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import fixed
from attncli.views.tables.elements import Drawing, Paragraph, Section

KINDS = {
    "strongest": "strongest",
    "weakest": "weakest",
    "typical": "typical (nearest to the median)",
}
MOST_EACH = 5
LEAST_WEIGHT = 0.1
MOST_BESIDE = 8
"""Tokens that stand on each side of a marked one."""
LEGEND = "value, text (its id or line): «query» and [key weight] of what it looks at most, the rest left out."


def examples_screen(report: Report, display: Display) -> Iterator[Section]:
    """What the head does on average; then some of its strongest, weakest and typical rows."""
    spec, about, width = report.spec, report.numbers("head"), display.width or 80
    yield Paragraph(shortened(plain_text(f"heads: {report.notes[0].rstrip('.')}"), width), "title")
    mean: Any = about.get("mean")
    upper: Any = about.get("upper")
    half = f" ±{fixed(upper - mean, 2)}" if _are_numbers(mean, upper) else ""
    median = fixed(about["median"], 2)
    yield Paragraph(f"{spec['sort']} {fixed(mean, 2)}{half}, median of the rows {median}", "line")
    weights = report.table("example_weights")
    num_shown = 0
    for kind, rows in groupby(report.table("examples"), key=lambda row: str(row["kind"])):
        shown = list(rows)[:MOST_EACH]
        num_shown += len(shown)
        room = max(len(str(row["text"])) for row in shown)
        lines = [
            f"{fixed(float(str(row['value'])), 2)}  {plain_text(str(row['text'])):<{room}}  " for row in shown
        ]
        told = [
            _fitting(line, row, [one for one in weights if _is_of(one, row)], width)
            for line, row in zip(lines, shown, strict=True)
        ]
        yield Drawing(KINDS.get(kind, plain_text(kind)), told, {})
    yield Paragraph("", "dim")
    yield Paragraph(LEGEND, "note")
    left_out = len(report.table("examples")) - num_shown
    more = f" {left_out} more examples: --show all." if left_out else ""
    for note in [f"{report.notes[1]}{more}", *report.notes[2:]]:
        yield Paragraph(plain_text(note), "note")


def _are_numbers(*cells: Any) -> bool:
    return all(isinstance(cell, float) and cell == cell for cell in cells)


def _is_of(one: Row, example: Row) -> bool:
    return one["kind"] == example["kind"] and one["rank"] == example["rank"]


def _fitting(line: str, example: Row, tokens: Sequence[Row], width: int) -> str:
    """With as many tokens beside those that are marked as fit."""
    texts = [line + _marked(example, tokens, beside) for beside in range(MOST_BESIDE, -1, -1)]
    return next((text for text in texts if cell_len(text) <= width), shortened(texts[-1], width))


def _marked(example: Row, tokens: Sequence[Row], beside: int) -> str:
    """The tokens near the query and near the keys that it looks at."""
    query = int(str(example["query"]))
    keys = {place for place, one in enumerate(tokens) if float(str(one["weight"])) >= LEAST_WEIGHT}
    keys.add(int(str(example["key"])))
    near = {place + step for place in (query, *keys) for step in range(-beside, beside + 1)}
    parts: list[str] = []
    for place, one in enumerate(tokens):
        text = plain_text(str(one["token"]))
        if place in keys:
            text = f"[{text} {fixed(float(str(one['weight'])), 2)}]"
        if place == query:
            text = f"«{text}»"
        if place in near:
            parts.append(text)
        elif not parts or parts[-1] != "…":
            parts.append("…")
    return " ".join(parts)
