"""The steps of a saved report, followed by hand: formulas, shapes, and tables with their own columns."""

from attncli.report import Cell, Shape, Step, Terms
from attncli.saved.parts import Part


def read_steps(part: Part) -> tuple[Step, ...]:
    """Every step in its order."""
    return tuple(_step(item) for item in part.items())


def _step(part: Part) -> Step:
    fields = part.fields(("title", "formula", "prose", "shapes", "values", "tables"))
    title, formula, prose = (fields[name].text() for name in ("title", "formula", "prose"))
    shapes = tuple(_shape(item) for item in fields["shapes"].items())
    values = {name: _cell(item) for name, item in fields["values"].mapping().items()}
    return Step(
        title, formula, prose, shapes, values, tuple(_terms(item) for item in fields["tables"].items())
    )


def _shape(part: Part) -> Shape:
    fields = part.fields(("name", "axes", "sizes", "strides"))
    axes, sizes = fields["axes"].texts(), _counts(fields["sizes"])
    strides = None if fields["strides"].value is None else _counts(fields["strides"])
    if len(sizes) != len(axes) or len(strides or sizes) != len(axes):
        raise part.wrong(f"must have a size (and a stride, where there are any) for each of {len(axes)} axes")
    return Shape(fields["name"].text(), axes, sizes, strides)


def _terms(part: Part) -> Terms:
    fields = part.fields(("title", "columns", "rows", "count", "totals"))
    columns = fields["columns"].texts()
    rows, totals = (_rows(fields[name], len(columns)) for name in ("rows", "totals"))
    return Terms(fields["title"].text(), columns, rows, _count(fields["count"]), totals)


def _rows(part: Part, width: int) -> tuple[tuple[Cell, ...], ...]:
    rows = tuple(tuple(_cell(item) for item in row.items()) for row in part.items())
    if any(len(row) != width for row in rows):
        raise part.wrong(f"must have a cell for each of {width} columns in every row")
    return rows


def _cell(part: Part) -> Cell:
    if isinstance(part.value, bool):
        raise part.wrong(f"must be a number, a text or null {part.got()}")
    cell: Cell = part.scalar()
    return cell


def _counts(part: Part) -> tuple[int, ...]:
    return tuple(_count(item) for item in part.items())


def _count(part: Part) -> int:
    if type(part.scalar()) is not int or part.value < 0:
        raise part.wrong(f"must be a whole number {part.got()}")
    count: int = part.value
    return count
