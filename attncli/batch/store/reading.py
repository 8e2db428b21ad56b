"""Reading a store, even while a batch is still writing it."""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.batch.store.columns import FLOAT, Columns
from attncli.batch.store.store import columns_of
from attncli.batch.store.store_file import check_header, connect_to_read
from attncli.errors import RunError, UserError

RUNS_AT_ONCE = 1000


def differing_settings(several: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The keys in which several settings differ, each with its values."""
    every = list(several)
    keys = sorted({key for settings in every for key in settings})
    values = {key: list(dict.fromkeys(str(settings.get(key)) for settings in every)) for key in keys}
    return {key: found for key, found in values.items() if len(found) > 1}


class RunInfo(NamedTuple):
    """A run by its number, the id of its sentence, the last plan that names it, and its settings' number."""

    run: int
    id: str | None
    plan: int
    settings: int


class Runs(NamedTuple):
    """Neighbouring runs with the same columns, and their values (run, column)."""

    columns: Columns
    runs: list[RunInfo]
    values: np.ndarray


class FailedRun(NamedTuple):
    """A run that failed, its source in the plan, and the error."""

    run: RunInfo
    source: str
    error: str


def _stored_object(text: Any, what: str) -> dict[str, Any]:
    """A JSON object as the store has it; DatabaseError for anything else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise sqlite3.DatabaseError(f"the {what} of its runs are damaged")
    return found


class Reader:
    """A store that is open for reading: the runs in the plan of the last batch, or all runs."""

    def __init__(self, connection: sqlite3.Connection, *, all_runs: bool = False) -> None:
        self._connection = connection
        self.all_runs = all_runs
        self.keeps_rows, self.plan = connection.execute("SELECT keeps_rows, plan FROM store").fetchone()
        self._chosen = "" if all_runs else " AND plan IS NULL"
        # The settings of every experiment in the store, by their number.
        self.settings: dict[int, dict[str, Any]] = {
            number: {"experiment": experiment, **_stored_object(spec, "settings")}
            for number, experiment, spec in connection.execute(
                "SELECT settings, experiment, spec FROM settings"
            )
        }
        self._columns: dict[int, Columns] = {}

    def counts(self) -> dict[str, int]:
        """How many runs are done, and how many failed."""
        query = f"SELECT status, count(*) FROM runs WHERE true{self._chosen} GROUP BY status"
        return {"done": 0, "failed": 0} | dict(self._connection.execute(query).fetchall())

    def settings_in_use(self) -> dict[int, dict[str, Any]]:
        """The settings of the chosen runs, by their number."""
        query = f"SELECT DISTINCT settings FROM runs WHERE true{self._chosen} ORDER BY settings"
        return {number: self.settings[number] for (number,) in self._connection.execute(query)}

    def count_earlier(self, settings: int | None = None) -> int:
        """How many runs, all or those with these settings, are not in the plan of the last batch."""
        query = "SELECT count(*) FROM runs WHERE plan IS NOT NULL AND settings = coalesce(?, settings)"
        (count,) = self._connection.execute(query, (settings,)).fetchone()
        return int(count)

    def earlier_runs(self) -> str | None:
        """A line on the runs that are not in the plan of the last batch, if there are any."""
        count = self.count_earlier()
        runs = "1 run of an earlier plan" if count == 1 else f"{count:,} runs of earlier plans"
        if not count:
            return None
        if self.all_runs:
            return f"included: {runs} (that of the last batch is plan {self.plan})"
        return f"left out: {runs} (--all includes them)"

    def environments(self) -> list[dict[str, str]]:
        """The versions that computed the runs."""
        used = f"SELECT environment FROM runs WHERE true{self._chosen}"
        query = f"SELECT versions FROM environments WHERE environment IN ({used}) ORDER BY environment"
        return [_stored_object(text, "versions") for (text,) in self._connection.execute(query)]

    def statistics(self) -> list[str]:
        """The names of all statistics, in the order in which they were stored first."""
        query = "SELECT statistic FROM columns ORDER BY shape, position"
        return list(dict.fromkeys(name for (name,) in self._connection.execute(query)))

    def failed(self) -> Iterator[FailedRun]:
        """The failed runs in order."""
        for *run, source, error in self._select("source, error", "failed"):
            yield FailedRun(RunInfo(*run), source, error)

    def done(self) -> Iterator[Runs]:
        """The runs that are done, in order."""
        cursor = self._select("shape, figures", "done")
        while rows := cursor.fetchmany(RUNS_AT_ONCE):
            for shape, alike in groupby(rows, key=itemgetter(-2)):
                found = list(alike)
                if shape not in self._columns:
                    self._columns[shape] = columns_of(self._connection, shape)
                columns = self._columns[shape]
                data = b"".join(row[-1] for row in found)
                if len(data) != len(found) * len(columns) * np.dtype(FLOAT).itemsize:
                    raise sqlite3.DatabaseError("the statistics of its runs are damaged")
                values = np.frombuffer(data, FLOAT)
                yield Runs(
                    columns, [RunInfo(*row[:-2]) for row in found], values.reshape(len(found), len(columns))
                )

    def _select(self, columns: str, status: str) -> sqlite3.Cursor:
        """The runs with that status in order: the fields of RunInfo, then these columns."""
        about = f"run, id, coalesce(plan, {self.plan}), settings"
        where = f"status = '{status}'{self._chosen}"
        return self._connection.execute(f"SELECT {about}, {columns} FROM runs WHERE {where} ORDER BY run")


@contextmanager
def reading(path: Path, *, all_runs: bool = False) -> Iterator[Reader]:
    """The store of that name; UserError if there is none, RunError if it cannot be read."""
    if not path.exists():
        raise UserError(f"{path}: no such file")
    check_header(path)
    try:
        with closing(connect_to_read(path)) as connection:
            yield Reader(connection, all_runs=all_runs)
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be read: {error}") from None
