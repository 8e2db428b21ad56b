"""What a store holds, read while a batch may still be writing it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.batch.columns import Column, Columns
from attncli.batch.store import LITTLE_ENDIAN, columns_of
from attncli.batch.store_file import check_header, connect_to_read
from attncli.errors import RunError, UserError

RUNS_AT_ONCE = 1000


class Runs(NamedTuple):
    """Neighbouring runs of the same columns: their numbers, ids and settings, and figures (run, column)."""

    columns: Columns
    runs: list[int]
    ids: list[str | None]
    settings: list[int]
    figures: np.ndarray


class FailedRun(NamedTuple):
    """A run that failed, and why."""

    run: int
    id: str | None
    source: str
    settings: int
    error: str


class Reader:
    """An open store, for reading."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        (self.keeps_rows,) = connection.execute("SELECT keeps_rows FROM store").fetchone()
        # Every setting of each experiment in the store, by their number.
        self.settings: dict[int, dict[str, Any]] = {
            number: {"experiment": experiment, **json.loads(spec)}
            for number, experiment, spec in connection.execute(
                "SELECT settings, experiment, spec FROM settings"
            )
        }
        self._columns: dict[int, Columns] = {}

    def counts(self) -> dict[str, int]:
        """How many runs are done, and how many failed."""
        query = "SELECT status, count(*) FROM runs GROUP BY status"
        return {"done": 0, "failed": 0} | dict(self._connection.execute(query).fetchall())

    def environments(self) -> list[dict[str, str]]:
        """The versions that runs were made with."""
        query = "SELECT versions FROM environments ORDER BY environment"
        return [json.loads(text) for (text,) in self._connection.execute(query)]

    def statistics(self) -> list[str]:
        """The names of all statistics, in the order in which they were first stored."""
        query = "SELECT statistic FROM columns ORDER BY shape, position"
        return list(dict.fromkeys(name for (name,) in self._connection.execute(query)))

    def failed(self) -> Iterator[FailedRun]:
        """The failed runs in their order."""
        query = "SELECT run, id, source, settings, error FROM runs WHERE status = 'failed' ORDER BY run"
        return (FailedRun(*row) for row in self._connection.execute(query))

    def done(self) -> Iterator[Runs]:
        """The runs that are done, in their order."""
        query = "SELECT shape, run, id, settings, figures FROM runs WHERE status = 'done' ORDER BY run"
        cursor = self._connection.execute(query)
        while rows := cursor.fetchmany(RUNS_AT_ONCE):
            for shape, alike in groupby(rows, key=lambda row: row[0]):
                _, runs, ids, settings, figures = zip(*alike, strict=True)
                columns = self._columns_of(shape)
                numbers = np.frombuffer(b"".join(figures), LITTLE_ENDIAN).reshape(len(runs), len(columns))
                yield Runs(columns, list(runs), list(ids), list(settings), numbers)

    def _columns_of(self, shape: int) -> tuple[Column, ...]:
        if shape not in self._columns:
            self._columns[shape] = columns_of(self._connection, shape)
        return self._columns[shape]


@contextmanager
def reading(path: Path) -> Iterator[Reader]:
    """The store of that name; UserError where there is none, RunError where it cannot be read."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    check_header(path)
    try:
        connection = connect_to_read(path)
        try:
            yield Reader(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
