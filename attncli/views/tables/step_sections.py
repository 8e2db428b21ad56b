"""The steps of a computation: one screen each, with title, formula, shapes, prose and numbers."""

from collections.abc import Iterator
from itertools import pairwise

from attncli.plain_text import plain_text
from attncli.report import Cell, Report, Shape, Step, Terms
from attncli.views.labels import shortened
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Grid, Paragraph, Section, TableLabels, Values

GAP_MARK = "⋮"
ROUNDING = 1e-6


def step_sections(report: Report, labels: TableLabels, only: int | None = None) -> Iterator[Section]:
    """Each step under its number, or the one of that number."""
    for number, step in enumerate(report.steps, start=1):
        if only not in (None, number):
            continue
        yield Paragraph(plain_text(f"{number} of {len(report.steps)}: {step.title}"), "step")
        yield Paragraph(plain_text(step.formula), "bold")
        yield from _shapes(step.shapes)
        if step.question:
            yield Paragraph(plain_text(step.question), "lead")
        yield Paragraph(plain_text(step.prose), "line" if step.question else "prose")
        for table in step.tables:
            yield _grid(table, labels)
        yield from _values(step, labels.precision)


def _shapes(shapes: tuple[Shape, ...]) -> Iterator[Section]:
    """One line for all; a table where strides matter."""
    if any(shape.strides is not None for shape in shapes):
        texts = {
            "axes": [plain_text(" × ".join(shape.axes)) for shape in shapes],
            "shape": [_tuple(shape.sizes) for shape in shapes],
            "strides": [_tuple(shape.strides or ()) for shape in shapes],
        }
        label = Column(("",), [plain_text(shape.name) for shape in shapes], left=True)
        yield Grid("", label, [Column((name,), cells, left=True) for name, cells in texts.items()])
    elif shapes:
        sizes = ", ".join(f"{s.name} {' × '.join(map(str, s.sizes))}" for s in shapes)
        yield Paragraph(plain_text(sizes), "dim")


def _tuple(sizes: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _grid(table: Terms, labels: TableLabels) -> Grid:
    """The terms; the title says how many rows are left out, and a mark says where."""
    has_text = len(table.columns) > 1 and table.columns[1] == "text"
    columns = []
    for place in range(2 if has_text else 1, len(table.columns)):
        cells = [plain_text(fixed(row[place], labels.precision)) for row in (*table.rows, *table.totals)]
        is_text = all(isinstance(row[place], str) for row in table.rows)
        first, _, second = plain_text(table.columns[place]).rpartition(" ")
        columns.append(Column((first, second), _with_gaps(table, cells), left=is_text))
    title = table.title
    if table.count > len(table.rows):
        totals = ", totals over all" if table.totals else ""
        title += f" ({len(table.rows)} of {table.count} rows{totals})"
    names = _with_gaps(table, _names(table, labels.row_width if has_text else 0))
    return Grid(plain_text(title), Column((plain_text(table.columns[0]),), names, left=True), columns)


def _names(table: Terms, text_width: int | None) -> list[str]:
    """The position that each row is about, and the token at it (width 0: none)."""
    width = max((len(str(row[0])) for row in table.rows if isinstance(row[0], int)), default=0)
    names = []
    for row in table.rows:
        position = f"{row[0]:>{width}}" if isinstance(row[0], int) else plain_text(str(row[0]))
        text = "" if text_width == 0 else shortened(plain_text(str(row[1])), text_width)
        names.append(f"{position} {text}".rstrip())
    return names + [plain_text(str(total[0])) for total in table.totals]


def _with_gaps(table: Terms, cells: list[str]) -> list[str]:
    """The cells with a mark where rows between them, or after the last, are left out."""
    if table.count == len(table.rows) or not all(isinstance(row[0], int) for row in table.rows):
        return cells
    positions = [int(row[0] or 0) for row in table.rows]
    marked = []
    for cell, (before, after) in zip(cells, pairwise([*positions, table.count]), strict=False):
        marked += [cell, GAP_MARK] if after > before + 1 else [cell]
    return marked + cells[len(positions) :]


def _values(step: Step, precision: int) -> Iterator[Values]:
    if step.values:
        values = {plain_text(name): value for name, value in step.values.items()}
        texts = {name: plain_text(value) for name, value in values.items() if isinstance(value, str)}
        numbers = {name: _number(value, precision) for name, value in values.items() if name not in texts}
        yield Values(texts, numbers)


def _number(value: Cell, precision: int) -> str:
    """A number, unless it is rounding alone, whose digits differ between processors."""
    if isinstance(value, float) and 0 < abs(value) < ROUNDING:
        return f"below {ROUNDING:.0e}"
    return scalar(value, precision)
