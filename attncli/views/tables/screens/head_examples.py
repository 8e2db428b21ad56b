"""Examples of one head: a text per line, with the query and the keys that it looks at marked in it."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import fixed
from attncli.views.tables.elements import Drawing, Paragraph, Section
from attncli.views.tables.screens.head_patterns import half_width
from attncli.views.tables.screens.headlines import closing_notes, one_line

TYPICAL = "typical (nearest to the median)"
MOST_EACH = 5
LEAST_WEIGHT = 0.1
MOST_BESIDE = 8
"""Tokens on each side of a marked one."""
LEGEND = "value, text (its id or line): «query» and [key weight] of what it looks at most, the rest left out."


def examples_screen(report: Report, display: Display) -> Iterator[Section]:
    """What the head does on average; then some of its strongest, weakest and typical rows."""
    statistics, width = report.numbers("head"), display.width or 80
    yield one_line(f"heads: {report.notes[0].rstrip('.')}", display, "title")
    mean = statistics.get("mean")
    average = f"{fixed(mean, 2)} {half_width(mean, statistics.get('upper'))}".rstrip()
    median = fixed(statistics["median"], 2)
    yield Paragraph(f"{report.spec['sort']} {average}, median of the rows {median}", "line")
    weights = report.table("example_weights")
    num_shown = 0
    for kind, rows in groupby(report.table("examples"), key=lambda row: str(row["kind"])):
        shown = list(rows)[:MOST_EACH]
        num_shown += len(shown)
        room = max(len(str(row["text"])) for row in shown)
        lines = []
        for row in shown:
            tokens = [one for one in weights if (one["kind"], one["rank"]) == (row["kind"], row["rank"])]
            start = f"{fixed(float(str(row['value'])), 2)}  {plain_text(str(row['text'])):<{room}}  "
            lines.append(_fitting(start, row, tokens, width))
        yield Drawing(TYPICAL if kind == "typical" else plain_text(kind), lines)
    left_out = len(report.table("examples")) - num_shown
    more = f" {left_out} more examples: --show all." if left_out else ""
    yield from closing_notes([LEGEND, f"{report.notes[1]}{more}", *report.notes[2:]])


def _fitting(start: str, example: Row, tokens: Sequence[Row], width: int) -> str:
    """A line with as many tokens beside the marked ones as fit."""
    lines = [start + _marked(example, tokens, beside) for beside in range(MOST_BESIDE, -1, -1)]
    return next((line for line in lines if cell_len(line) <= width), shortened(lines[-1], width))


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
