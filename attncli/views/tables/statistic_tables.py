"""The statistics of a report as tables: single numbers, rows of named cells, and the heads of a survey."""

from collections.abc import Iterator, Sequence

from attncli.plain_text import plain_text
from attncli.report import PLACES, Cell, Numbers, Report, Row, Table
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.numbers import fixed, scalar
from attncli.views.tables.elements import Column, Grid, TableLabels, split_header

# Columns that hold a position, and its axis.
POSITIONS = {"query": "query", "gained_key": "key", "lost_key": "key"}
MAX_TEXT = 58
HEAD_COLUMNS = ("layer", "head", "stack", "kind", "module", "pattern")


def statistic_tables(report: Report, display: Display, labels: TableLabels) -> Iterator[Grid]:
    """Each table; then the numbers, those with the same names in one table."""
    groups: dict[tuple[str, ...], dict[str, Row]] = {}
    is_of_store = report.experiment == "results"
    for name, value in report.statistics.items():
        if isinstance(value, Table) and is_of_store and report.tensors:
            value = Table(row for row in value if None in map(row.get, PLACES))  # the others are on grids
        if value and isinstance(value, Table) and not is_of_store and set(PLACES) <= value[0].keys():
            yield heads_grid(name, value, display.precision)
        elif value and isinstance(value, Table):
            yield _grid(name, [str(number) for number in range(len(value))], value, display, labels)
        elif isinstance(value, Numbers):
            groups.setdefault(tuple(value), {})[name] = value
    for rows in groups.values():
        yield _grid("statistics", list(rows), list(rows.values()), display, labels)


def _grid(
    title: str, names: Sequence[str], rows: Sequence[Row], display: Display, labels: TableLabels
) -> Grid:
    """A row is named by its text, where its first cell is one."""
    first, *others = rows[0]
    if isinstance(rows[0][first], str):
        names = [plain_text(str(row[first])) for row in rows]
    else:
        others = [first, *others]
    columns = [
        column for name in others for column in _columns(name, [row[name] for row in rows], display, labels)
    ]
    return Grid(title, Column(("", ""), names, left=True), columns)


def _columns(
    name: str, cells: Sequence[Cell | list[Cell]], display: Display, labels: TableLabels
) -> Iterator[Column]:
    precision, header = display.precision, split_header(name)
    if lists := [cell for cell in cells if isinstance(cell, list)]:
        for i in range(len(lists[0])):
            yield Column((name, str(i)), [fixed(cell[i], precision) for cell in lists])
    elif any(isinstance(cell, str) for cell in cells):
        # A setting may be a word in one row and a number, or nothing, in the next: scale sqrt and 0.5.
        most = MAX_TEXT if display.width is not None else None
        yield Column(header, [shortened(_cell(cell, precision), most) for cell in cells], left=True)
    elif name in POSITIONS and len(places := [cell for cell in cells if isinstance(cell, int)]) == len(cells):
        yield Column(header, [labels.place(POSITIONS[name], place) for place in places], left=True)
    else:
        yield Column(header, [scalar(cell, precision) for cell in cells])


def heads_grid(
    title: str,
    rows: Sequence[Row],
    precision: int,
    *,
    first: str | None = None,
    halves: Sequence[str] | None = None,
) -> Grid:
    """Layer and head, the rest of its place where that distinguishes heads, and the statistics.

    The statistic `first` leads, with `halves`, the half widths of its intervals, beside it.
    """
    places = _distinguishing_places(rows)
    label, *columns = [
        Column(("", name), [plain_text(str(row[name])) for row in rows], left=name not in PLACES)
        for name in places
    ]
    names = sorted((name for name in rows[0] if name not in HEAD_COLUMNS), key=lambda name: name != first)
    numbers = [Column(split_header(name), [_cell(row[name], precision) for row in rows]) for name in names]
    if halves is not None:
        numbers.insert(1, Column(("", ""), halves))
    return Grid(title, label, [*columns, *numbers], sum(name in ("head", "stack") for name in places))


def _cell(cell: object, precision: int) -> str:
    return plain_text(cell) if isinstance(cell, str) else scalar(cell, precision)


def _distinguishing_places(rows: Sequence[Row]) -> list[str]:
    """The columns that say where a head is, without those that follow from its layer."""
    places = {(row["layer"], row.get("stack")) for row in rows}
    modules = {row.get("module") for row in rows}
    of_modules = {(row["layer"], row.get("stack"), row.get("module")) for row in rows}
    is_shown = {
        "stack": len({row.get("stack") for row in rows}) > 1,
        "kind": False,
        "module": not len(places) == len(modules) == len(of_modules),
    }
    return [name for name in HEAD_COLUMNS if name in rows[0] and is_shown.get(name, True)]
