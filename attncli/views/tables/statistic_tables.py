"""The statistics of a report as tables: single numbers, and rows of named cells."""

from collections.abc import Iterator, Sequence

from attncli.plain_text import plain_text
from attncli.report import PLACES, Cell, Numbers, Report, Row, Table
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Grid
from attncli.views.tables.heads_table import heads_grid
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.tensor_tables import two_lines

# Columns that hold a position, and the axis that it is on.
POSITIONS = {"query": "query", "gained_key": "key", "lost_key": "key"}
MAX_TEXT = 58


def statistic_tables(report: Report, display: Display, labels: TableLabels) -> Iterator[Grid]:
    """Each table; then the numbers, those with the same names in one table."""
    alike: dict[tuple[str, ...], dict[str, Row]] = {}
    for name, value in report.statistics.items():
        of_results = report.experiment == "results"
        if isinstance(value, Table) and of_results and report.tensors:
            value = Table(row for row in value if None in map(row.get, PLACES))  # the others are on grids
        if value and isinstance(value, Table) and not of_results and set(PLACES) <= value[0].keys():
            yield heads_grid(name, value, display.precision)
        elif value and isinstance(value, Table):
            yield _grid(name, [str(number) for number in range(len(value))], value, display, labels)
        elif isinstance(value, Numbers):
            alike.setdefault(tuple(value), {})[name] = value
    for rows in alike.values():
        yield _grid("statistics", list(rows), list(rows.values()), display, labels)


def _grid(
    title: str, names: Sequence[str], rows: Sequence[Row], display: Display, labels: TableLabels
) -> Grid:
    """A row is named by its text, where it has that in front."""
    columns = list(rows[0])
    if isinstance(rows[0][columns[0]], str):
        names = [plain_text(str(row[columns[0]])) for row in rows]
        del columns[0]
    shown = [
        column for name in columns for column in _columns(name, [row[name] for row in rows], display, labels)
    ]
    return Grid(title, Column(("", ""), names, left=True), shown)


def _columns(
    name: str, cells: Sequence[Cell | list[Cell]], display: Display, labels: TableLabels
) -> Iterator[Column]:
    precision, header = display.precision, two_lines(name)
    if lists := [cell for cell in cells if isinstance(cell, list)]:
        for i in range(len(lists[0])):
            yield Column((name, str(i)), [fixed(cell[i], precision) for cell in lists])
    elif any(isinstance(cell, str) for cell in cells):
        # A setting may be a word in one row and a number, or nothing, in the next: scale sqrt and 0.5.
        most = MAX_TEXT if display.width is not None else None
        texts = [cell if isinstance(cell, str) else scalar(cell, precision) for cell in cells]
        yield Column(header, [shortened(plain_text(text), most) for text in texts], left=True)
    elif name in POSITIONS and len(places := [cell for cell in cells if isinstance(cell, int)]) == len(cells):
        yield Column(header, [labels.place(POSITIONS[name], place) for place in places], left=True)
    else:
        yield Column(header, [scalar(cell, precision) for cell in cells])
