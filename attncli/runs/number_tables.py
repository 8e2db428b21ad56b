"""Tables of run numbers: one row per run, head, token or list item, and one column per statistic.

NULL stands for NaN in a report, or for a statistic that the run does not have: the table `columns` lists the
statistics of each run.
"""

import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attncli.records.stored_columns import StoredColumn, StoredColumns

ROWS_AT_ONCE = 250
"""The number of rows fetched at a time; larger blocks leave the processor cache before they are converted."""
PLACE_COLUMNS = ("run", "place", "layer", "head", "batch", "token", "list", "item")
LONGER = "statistic "
ITEM_NAME = re.compile(r"(?P<list>.+)\.(?P<item>0|[1-9][0-9]{0,8})(?:\.(?P<statistic>.+))?", re.DOTALL)
"""Names such as `sources.12.weight` or `curve.3`, which are numbers in one item of a list of any length."""
VALUE = "value"
"""The column for a list of bare numbers."""


def quoted(statistic: str) -> str:
    """Return the SQL column of a statistic; a statistic named like a place column gets a longer name."""
    is_taken = statistic.lower() in PLACE_COLUMNS or statistic.lower().startswith(LONGER)
    name = f"{LONGER}{statistic}" if is_taken else statistic
    return '"' + name.replace('"', '""') + '"'


class NumberTable(NamedTuple):
    """A table of numbers, and the columns that place a row within its run."""

    name: str
    places: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, ...]:
        """The run, and the row's number within the run if a run has several rows."""
        return ("run", "place") if self.places else ("run",)

    def definition(self, quoted_columns: Sequence[str] = ()) -> str:
        """Return the CREATE statement as SQLite stores it after these columns were added one by one."""
        statistics = "".join(f", {column} REAL" for column in quoted_columns)
        if not self.places:
            return f"CREATE TABLE {self.name} (run INTEGER PRIMARY KEY{statistics})"
        places = ", ".join(f"{place} {'TEXT' if place == 'list' else 'INTEGER'}" for place in self.places)
        return (
            f"CREATE TABLE {self.name} (run INTEGER NOT NULL, place INTEGER NOT NULL, {places}{statistics}, "
            "PRIMARY KEY (run, place)) WITHOUT ROWID"
        )

    def statistics(self, connection: sqlite3.Connection) -> list[str]:
        """Return the table's statistic columns, quoted."""
        names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({self.name})")]
        return ['"' + name.replace('"', '""') + '"' for name in names[len({*self.key, *self.places}) :]]


RUN_NUMBERS = NumberTable("run_statistics")
HEAD_NUMBERS = NumberTable("head_statistics", ("layer", "head"))
TOKEN_NUMBERS = NumberTable("token_statistics", ("layer", "head", "batch", "token"))
ITEM_NUMBERS = NumberTable("item_statistics", ("list", "item"))
NUMBER_TABLES = (RUN_NUMBERS, HEAD_NUMBERS, TOKEN_NUMBERS, ITEM_NUMBERS)
Place = tuple[int | str | None, ...]


class _Cell(NamedTuple):
    """The table of a number, the number's row within the run, and the statistic that names its column."""

    table: NumberTable
    place: Place
    statistic: str


def _table_cell(column: StoredColumn) -> _Cell:
    name, layer, head, batch, token = column
    if token is not None or batch is not None:
        return _Cell(TOKEN_NUMBERS, (layer, head, batch, token), name)
    if layer is not None or head is not None:
        return _Cell(HEAD_NUMBERS, (layer, head), name)
    match = ITEM_NAME.fullmatch(name)
    if match is None or match["statistic"] == VALUE:
        return _Cell(RUN_NUMBERS, (), name)
    return _Cell(ITEM_NUMBERS, (match["list"], int(match["item"])), match["statistic"] or VALUE)


class TablePart(NamedTuple):
    """The columns of a run in one table, with the row and the statistic of each column."""

    table: NumberTable
    statistics: tuple[str, ...]
    places: tuple[Place, ...]
    """The layer, head, batch and token of each row, or its list and item, if the table has these columns."""
    columns: np.ndarray
    rows: np.ndarray
    statistic_places: np.ndarray

    def only(self, chosen: np.ndarray) -> "TablePart":
        """Return the same rows with only some columns of the run; `chosen` has a Boolean for each column."""
        is_chosen = chosen[self.columns]
        used, statistic_places = np.unique(self.statistic_places[is_chosen], return_inverse=True)
        return self._replace(
            statistics=tuple(self.statistics[number] for number in used),
            columns=self.columns[is_chosen],
            rows=self.rows[is_chosen],
            statistic_places=statistic_places,
        )

    def cells(self, run: int, rows: Sequence[Sequence[float]]) -> Iterator[tuple[float | str | None, ...]]:
        """Yield a run's rows for the table."""
        if not self.table.places:
            yield (run, *rows[0])
            return
        for number, (place, statistics) in enumerate(zip(self.places, rows, strict=True)):
            yield (run, number, *place, *statistics)


@lru_cache(maxsize=64)
def table_parts(columns: StoredColumns) -> tuple[TablePart, ...]:
    """Return the tables that hold the numbers of a run with these columns."""
    parts = []
    cells = [*map(_table_cell, columns)]
    for table in NUMBER_TABLES:
        numbers = [number for number, cell in enumerate(cells) if cell.table is table]
        statistics: dict[str, int] = {}
        places: dict[Place, int] = {}
        where = [
            (
                places.setdefault(cells[number].place, len(places)),
                statistics.setdefault(cells[number].statistic, len(statistics)),
            )
            for number in numbers
        ]
        if numbers:
            rows, statistic_places = np.array(where).T
            parts.append(
                TablePart(table, tuple(statistics), tuple(places), np.array(numbers), rows, statistic_places)
            )
    return tuple(parts)


def insert_numbers(
    connection: sqlite3.Connection, columns: StoredColumns, runs: Sequence[int], values: np.ndarray
) -> None:
    """Insert the numbers (run, column) of runs; the tables must already have these columns."""
    for part in table_parts(columns):
        cells = np.full((len(runs), len(part.places), len(part.statistics)), np.nan)
        cells[:, part.rows, part.statistic_places] = values[:, part.columns]
        names = [*part.table.key, *part.table.places, *map(quoted, part.statistics)]
        query = f"INSERT INTO {part.table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        rows = (
            row for run, numbers in zip(runs, cells.tolist(), strict=True) for row in part.cells(run, numbers)
        )
        connection.executemany(query, rows)


class _Rows(NamedTuple):
    """The rows of neighbouring runs in a table: the run of each row, and its numbers by statistic."""

    runs: np.ndarray
    numbers: np.ndarray
    statistics: Mapping[str, int]

    def complete_runs(self, part: TablePart, runs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of complete runs, and their numbers (run, column of the part)."""
        starts, ends = (np.searchsorted(self.runs, runs, side=side) for side in ("left", "right"))
        complete = np.flatnonzero(ends - starts == len(part.places))
        statistics = np.array([self.statistics[name] for name in part.statistics])[part.statistic_places]
        if len(part.places) == 1:  # two steps are quicker
            return complete, self.numbers[starts[complete]].take(statistics, axis=1)
        return complete, self.numbers[starts[complete, None] + part.rows, statistics]


def _read_rows(
    connection: sqlite3.Connection, table: NumberTable, statistics: Sequence[str], runs: range
) -> _Rows:
    """Read the rows of these runs; rows with anything but numbers are left out."""
    query = (
        f"SELECT {', '.join(['run', *map(quoted, statistics)])} FROM {table.name} "
        f"WHERE run BETWEEN ? AND ? ORDER BY {', '.join(table.key)}"
    )
    read = connection.execute(query, (runs.start, runs.stop - 1))
    blocks = [np.empty((0, 1 + len(statistics)))]
    while rows := read.fetchmany(ROWS_AT_ONCE):
        try:
            blocks.append(np.array(rows, dtype=np.float64))
        except (ValueError, TypeError):
            numbers = [row for row in rows if not any(isinstance(cell, str | bytes) for cell in row)]
            blocks.append(np.array(numbers, dtype=np.float64).reshape(-1, 1 + len(statistics)))
    cells = np.concatenate(blocks)
    return _Rows(cells[:, 0], cells[:, 1:], {name: place for place, name in enumerate(statistics)})


class RunNumbers(NamedTuple):
    """The positions of the complete runs, and their numbers (run, column)."""

    complete: np.ndarray
    values: np.ndarray


class NumbersOfRuns:
    """The numbers of runs in a range of run numbers, optionally for some statistics only."""

    def __init__(
        self, connection: sqlite3.Connection, shapes: Collection[Sequence[TablePart]], runs: range
    ) -> None:
        needed: dict[NumberTable, dict[str, None]] = {}
        for part in (part for parts in shapes for part in parts):
            needed.setdefault(part.table, {}).update(dict.fromkeys(part.statistics))
        self._rows = {
            table: _read_rows(connection, table, [*statistics], runs) for table, statistics in needed.items()
        }

    def complete_runs(self, parts: Sequence[TablePart], runs: Sequence[int], num_columns: int) -> RunNumbers:
        """Return the numbers of runs that have the same columns."""
        numbers = np.array(runs, dtype=np.float64)
        values = np.full((len(runs), num_columns), np.nan)
        has_all = np.ones(len(runs), dtype=bool)
        for part in parts:
            complete, part_values = self._rows[part.table].complete_runs(part, numbers)
            if len(complete) == len(runs):
                values[:, part.columns] = part_values
            else:
                values[complete[:, None], part.columns] = part_values
                has_all &= np.isin(np.arange(len(runs)), complete)
        return RunNumbers(np.flatnonzero(has_all), values if has_all.all() else values[has_all])
