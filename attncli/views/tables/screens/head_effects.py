"""What the heads of a model do to its answer: what is lost without each, and what each adds to a logit."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Report, Row
from attncli.views import Display
from attncli.views.heading import counted
from attncli.views.numbers import NO_NUMBER, fixed
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section, TableLabels, split_header
from attncli.views.tables.screens.headlines import closing_notes, one_line, text_line

MOST_LINES, FEWEST_HEADS = 30, 4
HIGHEST_GRID, CELL = 13, 2
OTHER_LINES = 9
"""The title, the text, the table's title, header and rule, what to type next, and blank lines between.

A header with names of two words has a second line.
"""
EFFECTS = ("loss", "kl", "probability", "logit_difference", "output_change", "approximate")
DIFFERENCES = ("loss", "probability", "logit_difference")
FALLING = ("probability", "logit_difference")

MOST_HEADS, MOST_KEYS = 6, 4
TERMS = {"embedding": "embedding", "heads": "heads", "mlps": "MLPs", "biases": "biases"}


def ablate_screen(report: Report, display: Display) -> Iterator[Section]:
    """The model, what it read and how well it did; the heads in order; a grid; what was removed."""
    width, heads, sort = display.width or 0, report.table("heads"), str(report.spec["sort"])
    # The first note says how many heads there are.
    yield one_line(f"ablate: {report.notes[0]}", display, "title")
    yield text_line(report, display)
    summary = list(_summary(report, display.precision))
    yield from (Paragraph(line, "") for line in summary)
    is_whole = not report.spec.get("heads") or bool(report.spec.get("approximate"))
    grids = report.tensors.items() if is_whole else ()
    drawings = [_tenths(name, tensor, sort, width) for name, tensor in grids]
    height = sum(len(drawing.lines) + 2 for drawing in drawings)
    if height > HIGHEST_GRID:
        drawings, height = [], 0
    notes = [plain_text(note) for note in report.notes[1:]]
    has_second_header = any("_" in effect for effect in _effects(heads, sort))
    taken = OTHER_LINES + has_second_header + height
    taken += sum(-(-cell_len(line) // width) for line in (*summary, *notes))
    most = report.spec.get("top") or max(FEWEST_HEADS, MOST_LINES - taken)
    yield _ranked(heads[:most], len(heads), sort, display)
    yield from drawings
    yield from closing_notes(notes)


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
    names = (name for name in EFFECTS if name in numbers)
    return ", ".join(f"{name} {_number(name, numbers[name], precision, signed)}" for name in names)


def _number(name: str, value: object, precision: int, signed: bool = True) -> str:
    """A number with its sign where it is a difference."""
    is_more = _effect_of(name) in DIFFERENCES and isinstance(value, float) and value > 0
    return ("+" if signed and is_more else "") + fixed(value, precision)


def _effect_of(name: str) -> str:
    """`loss` of `loss_low`, the lower end of its interval."""
    return name.removesuffix("_low").removesuffix("_high")


def _ranked(rows: Sequence[Row], count: int, sort: str, display: Display) -> Grid:
    """The first heads: what each looks at, and its effects, starting with the one they are sorted by."""
    has_stacks = len({row["stack"] for row in rows}) > 1
    label = _head_names(rows)
    if has_stacks:
        names = [f"{row['stack']} {name}" for row, name in zip(rows, label.cells, strict=True)]
        label = Column(label.header, names)
    columns = [
        Column(split_header(name), [_number(name, row[name], display.precision) for row in rows])
        for name in _effects(rows, sort)
    ]
    shown = f"the first {len(rows)} of {count} heads" if len(rows) < count else counted(count, "head")
    order = "lowest" if sort in FALLING else "largest"
    title = f"{shown} by {sort}, {order} first"
    return Grid(title, label, [_patterns(rows), *columns]).first_group(display.width)


def _head_names(rows: Sequence[Row]) -> Column:
    return Column(("", "head"), [f"{row['layer']}:{row['head']}" for row in rows])


def _patterns(rows: Sequence[Row]) -> Column:
    return Column(("", "looks at"), [plain_text(str(row["pattern"])) for row in rows], left=True)


def _effects(rows: Sequence[Row], sort: str) -> list[str]:
    """The effects that were measured, starting with the one that the heads are sorted by."""
    effects = [name for name in rows[0] if _effect_of(name) in EFFECTS]
    return sorted(effects, key=lambda name: not name.startswith(sort))


def _tenths(name: str, tensor: NamedTensor, sort: str, width: int) -> Drawing:
    """A digit for each head: tenths of the largest effect. The longer side is horizontal."""
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
    return Drawing(plain_text(f"{unit}; - is the other way"), lines)


def _tenth(value: float, largest: float) -> str:
    if not np.isfinite(value):
        return " "
    share = 10 * value / largest if largest else 0.0
    return "-" if share <= -0.5 else NO_NUMBER if share < 0.5 else str(min(9, round(share)))


def why_screen(report: Report, display: Display) -> Iterator[Section]:
    """The sum; the heads and the MLPs that add most; the tokens whose values a head moved."""
    parts, precision = report.numbers("parts"), display.precision
    yield one_line(f"why: {report.notes[0]}", display, "title")
    yield text_line(report, display)
    yield Paragraph(plain_text(report.notes[1]), "note")
    terms = " + ".join(f"{term} {fixed(parts[name], precision)}" for name, term in TERMS.items())
    yield Paragraph(f"logit {fixed(parts['logit'], precision)} = {terms}", "")
    yield _heads_and_mlps(report, precision)
    yield _keys(report, TableLabels(report, display), precision)
    yield from closing_notes(report.notes[2:])


def _heads_and_mlps(report: Report, precision: int) -> Grid:
    """The heads that add most, up or down, and beside them the MLPs."""
    heads = report.table("heads")[:MOST_HEADS]
    layers = sorted(report.table("layers"), key=lambda row: -abs(float(str(row["mlp"]))))[: len(heads)]
    mlps = [(f"MLP {row['layer']}", fixed(row["mlp"], precision)) for row in layers]
    mlps += [("", "")] * (len(heads) - len(mlps))
    columns = [
        _patterns(heads),
        Column(("", "adds"), [fixed(row["contribution"], precision) for row in heads]),
        Column(("", ""), [f"  {name}" for name, _ in mlps], left=True),
        Column(("", "adds"), [number for _, number in mlps]),
    ]
    return Grid(f"the first {len(heads)} heads and MLPs, largest first", _head_names(heads), columns)


def _keys(report: Report, labels: TableLabels, precision: int) -> Grid:
    """The tokens whose values the head moved most, by what that adds."""
    tensors = report.tensors_of("keys")
    places = np.argsort(-np.abs(tensors["contribution"].values), kind="stable")[:MOST_KEYS].tolist()
    columns = [
        Column(("", header), [fixed(float(tensors[name].values[place]), precision) for place in places])
        for header, name in (("weight", "weight"), ("adds", "contribution"))
    ]
    tokens = [labels.place("key", place) for place in places]
    title = f"head {report.spec['head']}, by the tokens that it looked at"
    return Grid(title, Column(("", "token"), tokens, left=True), columns)
