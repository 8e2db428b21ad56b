"""The first screen of heads over the steps of a training run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attncli.core.row_statistics import PATTERNS, UNNAMED
from attncli.plain_text import plain_text
from attncli.report import Report, Row
from attncli.views import TEXT_WIDTH, Display
from attncli.views.matrices import head_name
from attncli.views.model_screens import head_letters, pattern_letter
from attncli.views.sections import (
    GAP,
    Column,
    Drawing,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
    notes_in,
    one_line,
    text_line,
    titled,
)
from attncli.views.texts import NO_CELL, counted, fixed, wrap_cells

LEVELS = "▁▂▃▄▅▆▇█"
MOST_CELLS, LEAST_CELLS = 60, 8
MOST_CHANGES, USUAL_CHANGES = 4, 3
LEAST_LINES, USUAL_LINES = 2, 10
PURPOSELESS = (UNNAMED, "uniform")
FORMING = ("induction", "previous token")
"""The patterns of the circuit that forms at once (Olsson et al. 2022)."""
KEEPS_LEAST = "least"
"""How the names of numbers begin whose fall matters."""
ALIKE = ("_mul", "_stripe")
"""The ends of names of statistics that say about the same as another."""
SHARES = (*PATTERNS, "sink_mass", "local_mass", "max_weight", "normalized_entropy", "one_key_mass")
"""The ends of names of statistics that are shares of one."""


def sparkline(
    values: Sequence[float], cells: int, *, keeps_least: bool = False, is_share: bool = False
) -> str:
    """One character for each number, or for several the largest (the least) of them; / for no number.

    The lowest block is 0, or what is less, the highest the largest number, of shares 1: small changes of a
    number stay small.
    """
    numbers = np.array(values, dtype=np.float64)
    parts = np.array_split(numbers, min(cells, len(numbers)))
    finite = [part[np.isfinite(part)] for part in parts]
    ends = [(part.min() if keeps_least else part.max()) if part.size else np.nan for part in finite]
    known = [end for end in ends if np.isfinite(end)]
    if not known:
        return NO_CELL * len(ends)
    low = min(0.0, *known)
    span = max(float(is_share), *known) - low
    places = [0 if span == 0 else (end - low) / span for end in ends]
    return "".join(
        NO_CELL if np.isnan(place) else LEVELS[min(int(place * len(LEVELS)), len(LEVELS) - 1)]
        for place in places
    )


class _Line(NamedTuple):
    """A number at each step, as a row: what it is, how the ends are written, and what is said of it."""

    name: str
    numbers: Sequence[float]
    first: str
    last: str
    said: str
    is_share: bool = False


def watch_screen(report: Report, display: Display) -> ScreenParts:
    """Numbers and counts of patterns over the steps, what each head does at the last one, changes."""
    yield one_line(titled(report), display, "title")
    yield text_line(report, display)
    if report.spec.get("head"):
        yield from _of_head(report, display)
        return
    steps, patterns = report.table("steps"), report.table("patterns")
    names = [name for name in steps[0] if name != "step" and not name.endswith("_heads")]
    numbers = [_line_of_numbers(name, steps, display) for name in names]
    # What tells most of a training is kept where there is little room.
    by_worth = sorted(patterns, key=lambda row: row["pattern"] not in FORMING)
    counts = {id(row): _line_of_pattern(row, patterns) for row in patterns}
    worth = [*numbers[:2], *(counts[id(row)] for row in by_worth), *numbers[2:]]
    yield _lines_part([*numbers, *counts.values()], worth, display)
    heads = report.table("heads")
    stacks = {
        plain_text(stack): list(rows) for stack, rows in groupby(heads, key=lambda row: str(row["stack"]))
    }
    yield head_letters(stacks, display)
    if lines := [*_changes(report.table("changes"), display)]:
        yield Elastic(partial(_last, lines), min(USUAL_CHANGES, len(lines)), 0, len(lines), rank=2)
    yield notes_in(report.notes, display, usual=0, apart=True)


def _lines_part(lines: Sequence[_Line], worth: Sequence[_Line], display: Display) -> Elastic:
    """As many rows as there is room for, in their order, those that tell most first."""

    def of(count: int) -> Iterator[Section]:
        kept = set(map(id, worth[:count]))
        yield _grid([line for line in lines if id(line) in kept], display)
        if left_out := len(lines) - len(kept):
            yield Paragraph(f"Not shown: {counted(left_out, 'more line')}: --show all.", "note")

    return Elastic(of, min(USUAL_LINES, len(lines)), min(LEAST_LINES, len(lines)), len(lines), rank=1)


def _grid(lines: Sequence[_Line], display: Display) -> Grid:
    """A row for each line, drawn in what the other columns leave of the width."""
    label = Column(("",), [line.name for line in lines], left=True)
    ends = [
        Column(("first",), [line.first for line in lines]),
        Column(("last",), [line.last for line in lines]),
    ]
    said = Column(("",), [line.said for line in lines], left=True)
    used = label.width + sum(GAP + column.width for column in (*ends, said)) + GAP
    cells = max(LEAST_CELLS, min(MOST_CELLS, (display.width or TEXT_WIDTH) - used))
    drawn = [
        sparkline(line.numbers, cells, keeps_least=line.name.startswith(KEEPS_LEAST), is_share=line.is_share)
        for line in lines
    ]
    return Grid("", label, [*ends, Column(("over the steps",), drawn, left=True), said])


def _line_of_pattern(row: Row, patterns: Sequence[Row]) -> _Line:
    """`I induction heads`, how many there are, and from which step on by which head."""
    is_alone = len({each["stack"] for each in patterns}) == 1
    lettered = f"{pattern_letter(row['pattern'])} {row['pattern']} heads"
    name = plain_text(lettered if is_alone else f"{row['stack']}: {lettered}")
    counts = _list(row, "count")
    said = f"from step {row['first_step']}, {head_name(row)}"
    return _Line(name, counts, f"{counts[0]:.0f}", f"{counts[-1]:.0f}", said)


def _list(row: Row, name: str) -> list[float]:
    cell = row[name]
    return [float(str(item)) for item in cell] if isinstance(cell, list) else []


def _line_of_numbers(name: str, steps: Sequence[Row], display: Display) -> _Line:
    """A statistic, or the loss, and its least and largest number."""
    numbers = [_number(row[name]) for row in steps]
    known = [number for number in numbers if np.isfinite(number)]
    said = ""
    if known:
        said = " to ".join(fixed(end, display.precision) for end in (min(known), max(known)))
    first, last = (fixed(steps[place][name], display.precision) for place in (0, -1))
    is_share = name.partition(" ")[0].endswith(SHARES)
    return _Line(plain_text(name.replace("_", " ")), numbers, first, last, said, is_share)


def _number(cell: object) -> float:
    return float(cell) if isinstance(cell, int | float) else np.nan


def _changes(changes: Sequence[Row], display: Display) -> Iterator[str]:
    """`step 300: 0:1 previous token, 1:0 1:1 induction`: what heads have become, or are no longer.

    From uniform to unnamed and back is left out: heads without a purpose do that.
    """
    width = display.width or TEXT_WIDTH
    told = [row for row in changes if not {row["before"], row["after"]} <= {*PURPOSELESS}]
    for step, rows in groupby(told, key=lambda row: row["step"]):
        by_pattern: dict[str, list[str]] = {}
        for row in rows:
            is_lost = row["after"] in PURPOSELESS
            pattern = f"no longer {row['before']}" if is_lost else str(row["after"])
            by_pattern.setdefault(pattern, []).append(head_name(row))
        texts = [f"{' '.join(heads)} {pattern}" for pattern, heads in by_pattern.items()]
        first, *others = wrap_cells(plain_text(f"step {step}: {', '.join(texts)}"), width - 1)
        yield first + ("…" if others else "")


def _last(lines: Sequence[str], count: int) -> list[Section]:
    """The last of them, and how many are left out."""
    what, every = "what heads became", f"{len(lines)} steps: --show changes"
    if not count:
        return [Paragraph(f"Not shown: {what} at {every}.", "note")]
    title = what if count == len(lines) else f"{what} at the last {count} of {every}"
    return [Drawing(title, lines[-count:])]


def _of_head(report: Report, display: Display) -> ScreenParts:
    """Every statistic of a head over the steps, and when its pattern changed."""
    rows = report.table("head")
    for name in (name for name in rows[0] if name.startswith("pattern")):
        spans = [
            f"{plain_text(str(pattern))} from step {next(iter(some))['step']}"
            for pattern, some in groupby(rows, key=lambda row: row[name])
        ]
        shown = spans if len(spans) <= MOST_CHANGES else ["…", *spans[-MOST_CHANGES:]]
        yield Paragraph(f"{name}: {', '.join(shown)}", "line")
    names = [name for name in rows[0] if name != "step" and not name.startswith("pattern")]
    lines = [_line_of_numbers(name, rows, display) for name in names if not name.endswith(ALIKE)]
    yield replace(_lines_part(lines, lines, display), usual=len(lines))
    yield notes_in(report.notes, display)
