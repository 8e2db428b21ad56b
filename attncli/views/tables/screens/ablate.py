"""What a model loses without each head: the heads that are missed most, and a grid of all of them."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Report, Row
from attncli.views import Display
from attncli.views.heading import counted
from attncli.views.labels import shortened
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section
from attncli.views.tables.screens.heads.screen import text_line
from attncli.views.tables.tensor_tables import two_lines

MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID, CELL = 13, 2
OTHER_LINES = 9
"""The title, the text, the table's title, header and rule, what to type next, and blank lines between.

A header with names of two words has a second line.
"""
EFFECTS = ("loss", "kl", "probability", "logit_difference", "output_change", "approximate")
DIFFERENCES = ("loss", "probability", "logit_difference")
FALLING = ("probability", "logit_difference")


def ablate_screen(report: Report, display: Display) -> Iterator[Section]:
    """The model, what it read and how well it did; the heads in order; a grid; what was taken out."""
    width, heads, sort = display.width or 0, report.table("heads"), str(report.spec["sort"])
    # The first note says how many heads there are.
    yield Paragraph(shortened(f"ablate: {plain_text(report.notes[0])}", width), "title")
    yield Paragraph(text_line(report, width), "")
    summary = list(_summary(report, display.precision))
    yield from (Paragraph(line, "") for line in summary)
    is_whole = not report.spec.get("heads") or bool(report.spec.get("approximate"))
    grids = report.tensors.items() if is_whole else ()
    drawn = [_tenths(name, tensor, sort, width) for name, tensor in grids]
    height = sum(len(drawing.lines) + 2 for drawing in drawn)
    if height > HIGHEST_GRID:
        drawn, height = [], 0
    notes = [plain_text(note) for note in report.notes[1:]]
    second_header = any("_" in effect for effect in _effects(heads, sort))
    taken = OTHER_LINES + second_header + height
    taken += sum(-(-cell_len(line) // width) for line in (*summary, *notes))
    yield _ranked(heads[: max(FEWEST_HEADS, MOST_LINES - taken)], len(heads), sort, display)
    yield from drawn
    yield Paragraph("", "dim")
    yield from (Paragraph(note, "note") for note in notes)


def _summary(report: Report, precision: int) -> Iterator[str]:
    """What was measured with all heads, and without several at once."""
    with_all, joint = report.numbers("baseline"), report.numbers("joint")
    if with_all:
        yield f"with all heads: {_numbers(with_all, precision)}"
    if joint:
        count = len(cast(list[str], report.spec["heads"]))
        yield f"without {count} heads at once: {_numbers(joint, precision, signed=True)}"
    if approximation := report.numbers("approximation"):
        correlation = fixed(approximation["rank_correlation"], precision)
        yield f"rank correlation of approximate and loss, on {approximation['heads']} heads: {correlation}"


def _numbers(numbers: Row, precision: int, *, signed: bool = False) -> str:
    shown = (name for name in EFFECTS if name in numbers)
    return ", ".join(f"{name} {_number(name, numbers[name], precision, signed)}" for name in shown)


def _number(name: str, value: object, precision: int, signed: bool = True) -> str:
    """A number with its sign where it is a difference."""
    text = fixed(value, precision)
    is_more = (
        isinstance(value, float)
        and value > 0
        and name.removesuffix("_low").removesuffix("_high") in DIFFERENCES
    )
    return f"+{text}" if signed and is_more else text


def _ranked(rows: Sequence[Row], count: int, sort: str, display: Display) -> Grid:
    """The first heads: what each looks at, and its effects, that which they are sorted by first."""
    several = len({row["stack"] for row in rows}) > 1
    names = [
        f"{row['stack']} {row['layer']}:{row['head']}" if several else f"{row['layer']}:{row['head']}"
        for row in rows
    ]
    columns = [
        Column(two_lines(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, sort)
    ]
    looks_at = Column(("", "looks at"), [plain_text(str(row["pattern"])) for row in rows], left=True)
    shown = f"the first {len(rows)} of {count} heads" if len(rows) < count else counted(count, "head")
    order = "lowest" if sort in FALLING else "largest"
    grid = Grid(f"{shown} by {sort}, {order} first", Column(("", "head"), names), [looks_at, *columns])
    return Grid(grid.title, grid.label, grid.groups(display.width)[0])


def _effects(rows: Sequence[Row], sort: str) -> list[str]:
    """The effects that were measured, that which the heads are sorted by first."""
    effects = [name for name in rows[0] if name.removesuffix("_low").removesuffix("_high") in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))


def _tenths(name: str, tensor: NamedTensor, sort: str, width: int) -> Drawing:
    """A digit for each head: tenths of the largest effect. The longer side goes across."""
    values = -tensor.values if sort in FALLING else tensor.values
    largest = np.nanmax(values, initial=0.0)
    is_wide = values.shape[0] >= values.shape[1]
    across, down = ("layer", "head") if is_wide else ("head", "layer")
    cells = (values.T if is_wide else values)[:, : (width - len(down) - 4) // CELL]
    label = max(len(f"{down} {len(cells) - 1}"), len(across))
    numbers = "".join(f"{i:>{CELL}}" if i % 2 == 0 else " " * CELL for i in range(cells.shape[1]))
    lines = [f"{across:<{label}} {numbers}".rstrip()]
    for i, row in enumerate(cells):
        digits = "".join(f"{_tenth(cell, largest):>{CELL}}" for cell in row)
        lines.append(f"{f'{down} {i}':<{label}} {digits}")
    unit = f"{name}, in tenths of the largest ({fixed(largest, 2)})"
    return Drawing(plain_text(f"{unit}; - is the other way"), lines, {})


def _tenth(value: float, largest: float) -> str:
    if not np.isfinite(value):
        return " "
    share = 10 * value / largest if largest else 0.0
    return "-" if share <= -0.5 else NO_NUMBER if share < 0.5 else str(min(9, round(share)))
