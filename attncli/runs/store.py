"""The store of a batch: an SQLite database that grows by one transaction per chunk."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attncli.errors import UserError, WriteError, one_line_reason
from attncli.records.stored_columns import StoredColumn, StoredColumns
from attncli.runs.chunks import DONE, FAILED, Chunk, ChunkResult, Run, UnfinishedJob
from attncli.runs.connection import Damaged, advice_on, beside, connect, signals_seen
from attncli.runs.jobs import Item
from attncli.runs.keys import RunKeys, settings_as_json
from attncli.runs.number_tables import (
    NUMBER_TABLES,
    NumbersOfRuns,
    NumberTable,
    insert_numbers,
    quoted,
    table_parts,
)
from attncli.runs.plan import Plan
from attncli.runs.store_files import check_header, create_file, driving, remove

ENDING = "-weights"


class WeightFiles:
    """The folder `runs.db-weights` of the store `runs.db`."""

    def __init__(self, store: Path) -> None:
        self.folder = beside(store, ENDING)

    def write(self, weights: Mapping[str, np.ndarray]) -> str | None:
        """Save matrices under the keys of their runs; return the name of the file, or None without matrices.

        The file is on disk before the transaction that names it, so that a store never names an incomplete
        file.
        """
        if not weights:
            return None
        from safetensors.numpy import save

        data = save({key: np.ascontiguousarray(matrix) for key, matrix in weights.items()})
        last = max((int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")), default=0)
        name = f"{last + 1:06}.safetensors"
        part = self.folder / f"{name}.part"
        try:
            self.folder.mkdir(exist_ok=True)
            try:
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self.folder / name)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            message = f"cannot be written: {error.strerror}: completed runs are kept"
            raise WriteError(f"{self.folder}: {message}") from None
        return name

    def remove_unused(self, used: set[str | None]) -> None:
        """Remove files of attn that a crash left behind and that the store does not name."""
        for pattern in ("[0-9]*.safetensors", "[0-9]*.safetensors.part"):
            for path in self.folder.glob(pattern):
                if path.name not in used:
                    path.unlink()


def refuse_without_safetensors() -> None:
    """Raise UserError if the package that writes the files is not installed."""
    if find_spec("safetensors") is None:
        raise UserError('--weights: needs: pip install "attncli[models]"')


STEP = "step "
"""The prefix of the source of a run that is a step of a training run; its id is the step's number."""
IS_STEP = f"source GLOB '{STEP}*'"

KEYS_A_QUERY = 500

# The number of a run is its place in the plan if that is free; the place occurs twice among the parameters.
ADD_RUN = """
INSERT INTO runs (run, key, id, source, settings, sentence, context, status, error, environment, shape,
    weights)
SELECT CASE WHEN EXISTS (SELECT 1 FROM runs WHERE run = ?) THEN NULL ELSE ? END,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE true
ON CONFLICT (key) DO UPDATE SET status = excluded.status, error = excluded.error,
    environment = excluded.environment, shape = excluded.shape, weights = excluded.weights
"""

# The runs of a plan, without duplicates; on disk, because there may be many.
PLANNED = """
CREATE TEMP TABLE planned (
    key BLOB PRIMARY KEY,
    place INTEGER NOT NULL,
    id TEXT,
    source TEXT NOT NULL,
    item INTEGER NOT NULL    -- the place of its experiment in the plan
) WITHOUT ROWID
"""
# Only changed rows are written.
LEAVE_OUT = """
UPDATE runs SET plan = (SELECT plan FROM store)
WHERE plan IS NULL AND key NOT IN (SELECT key FROM temp.planned)
"""
TAKE_IN = """
UPDATE runs SET plan = NULL, id = planned.id, source = planned.source FROM temp.planned
WHERE runs.key = planned.key AND (runs.plan, runs.id, runs.source) IS NOT (NULL, planned.id, planned.source)
"""
# A copied model has the same key at a different path.
ITEM_SETTINGS = "SELECT DISTINCT item, settings FROM temp.planned JOIN runs USING (key)"
CHANGE_SETTINGS = """
UPDATE runs SET settings = ? FROM temp.planned
WHERE runs.key = planned.key AND planned.item = ? AND runs.settings = ?
"""


class Store:
    """An open store, to which only this process writes."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, rows: bool, weights: bool) -> None:
        self.path = path
        self.rows, self.keeps_weights = rows, weights
        self._connection = connection
        # Keyed by identity; holding the item prevents its id from being reused.
        self._settings: dict[int, tuple[Item, int]] = {}
        self._shapes: dict[StoredColumns, int] = {}
        self._columns: dict[int, StoredColumns] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._statistics: dict[NumberTable, set[str]] = {}
        self._weights = WeightFiles(path)

    def take_plan(self, plan: Plan, keys: RunKeys) -> tuple[int, int]:
        """Record the runs of a plan with their current ids; return the numbers of runs and of completed runs.

        Other runs stay, with the number of the last plan that named them. This is one transaction, so after a
        crash the store has either the previous plan or this one.
        """
        note_planned(self._connection, plan, keys)
        with self._connection:
            self._connection.execute("BEGIN EXCLUSIVE")
            if self._connection.execute(LEAVE_OUT).rowcount:
                self._connection.execute("UPDATE store SET plan = plan + 1")
            self._connection.execute(TAKE_IN)
            items = plan.items()
            for item, settings in self._connection.execute(ITEM_SETTINGS).fetchall():
                if (number := self._settings_number(items[item])) != settings:
                    self._connection.execute(CHANGE_SETTINGS, (number, item, settings))
        return count_planned(self._connection)

    def count_earlier(self) -> int:
        """Count the runs that are not in the plan of the last batch."""
        (count,) = self._connection.execute("SELECT count(*) FROM runs WHERE plan IS NOT NULL").fetchone()
        return int(count)

    def planned(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bool]]:
        """Return each run's place (for equal runs, the place of the first), and True if the run is done."""
        places: dict[bytes, tuple[int, bool]] = {}
        for start in range(0, len(keys), KEYS_A_QUERY):
            part = keys[start : start + KEYS_A_QUERY]
            query = (
                "SELECT key, place, status IS ? FROM temp.planned LEFT JOIN runs USING (key) "
                f"WHERE key IN ({', '.join('?' * len(part))})"
            )
            rows = self._connection.execute(query, (DONE, *part))
            places |= {key: (place, bool(is_done)) for key, place, is_done in rows}
        return places

    def values(self, key: bytes) -> tuple[StoredColumns, np.ndarray]:
        """Return the columns and values of a completed run."""
        query = "SELECT run, shape FROM runs WHERE key = ?"
        run, shape = self._connection.execute(query, (key,)).fetchone()
        if shape not in self._columns:
            self._columns[shape] = read_columns(self._connection, shape)
        columns = self._columns[shape]
        parts = table_parts(columns)
        stored = NumbersOfRuns(self._connection, [parts], range(run, run + 1))
        complete, values = stored.complete_runs(parts, [run], len(columns))
        if not complete.size:
            raise Damaged(f"run {run}: its statistics are damaged")
        numbers: np.ndarray = values[0]
        return columns, numbers

    def steps(self) -> dict[bytes, int]:
        """Return the step of each completed run in a training run, by the run's key."""
        query = f"SELECT key, CAST(id AS INTEGER) FROM runs WHERE {IS_STEP} AND status = ?"
        return dict(self._connection.execute(query, (DONE,)))

    def last_run(self) -> int:
        """Return the largest run number, or 0 in an empty store."""
        (number,) = self._connection.execute("SELECT coalesce(max(run), 0) FROM runs").fetchone()
        if not 0 <= number <= MOST_NUMBER:
            raise Damaged(f"run {number}: its number is damaged")
        return int(number)

    def remove_steps(self, first: int, last: int | None = None) -> None:
        """Remove the steps of a training run from `first` to `last`."""
        steps = f"{IS_STEP} AND CAST(id AS INTEGER) BETWEEN ? AND ?"
        with self._adding():
            self._remove(steps, first, sys.maxsize if last is None else last)

    def _remove(self, condition: str, *values: object) -> None:
        """Remove the runs that meet a condition, along with their numbers."""
        for table in NUMBER_TABLES:
            query = f"DELETE FROM {table.name} WHERE run IN (SELECT run FROM runs WHERE {condition})"
            self._connection.execute(query, values)
        self._connection.execute(f"DELETE FROM runs WHERE {condition}", values)

    def replace_values(self, key: bytes, columns: StoredColumns, values: np.ndarray) -> None:
        """Replace the values of a completed run in one transaction."""
        with self._adding():
            ((run,),) = self._connection.execute("SELECT run FROM runs WHERE key = ?", (key,))
            for table in NUMBER_TABLES:
                self._connection.execute(f"DELETE FROM {table.name} WHERE run = ?", (run,))
            self._connection.execute("UPDATE runs SET shape = ? WHERE run = ?", (self._shape(columns), run))
            insert_numbers(self._connection, columns, [run], values[None])

    def chunk(self, jobs: tuple[UnfinishedJob, ...]) -> Chunk:
        """Return a chunk of jobs for a worker, with the parts that this store keeps."""
        return Chunk(jobs, rows=self.rows, weights=self.keeps_weights)

    def write(self, chunk: Chunk, result: ChunkResult) -> None:
        """Write every run of a chunk in one transaction; all of them are stored when this returns."""
        runs = chunk.runs()
        weights = {runs[number].key.hex(): matrix for number, matrix in result.weights.items()}
        with self._adding():
            rows = self._rows(runs, result, self._weights.write(weights))
            # Inserting in the table's order is quicker.
            self._connection.executemany(ADD_RUN, sorted(rows, key=itemgetter(0)))
            numbers = self._run_numbers([runs[number].key for number in result.values])
            by_columns: dict[int, list[int]] = {}
            for number, (columns, _) in result.values.items():
                by_columns.setdefault(id(columns), []).append(number)
            for alike in by_columns.values():
                alike.sort(key=lambda number: numbers[runs[number].key])
                values = np.stack([result.values[number][1] for number in alike])
                columns, _ = result.values[alike[0]]
                insert_numbers(
                    self._connection, columns, [numbers[runs[number].key] for number in alike], values
                )

    def _run_numbers(self, keys: Sequence[bytes]) -> dict[bytes, int]:
        """Return the numbers of stored runs by their keys."""
        numbers: dict[bytes, int] = {}
        for start in range(0, len(keys), KEYS_A_QUERY):
            part = keys[start : start + KEYS_A_QUERY]
            query = f"SELECT key, run FROM runs WHERE key IN ({', '.join('?' * len(part))})"
            numbers |= dict(self._connection.execute(query, part))
        return numbers

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """Open one transaction."""
        try:
            with self._connection:
                self._connection.execute("BEGIN EXCLUSIVE")
                yield
        except BaseException:
            # The rollback also undid new settings numbers and shape numbers.
            for cache in (self._settings, self._shapes, self._numbers, self._statistics):
                cache.clear()
            raise

    def _rows(
        self, runs: Mapping[int, Run], result: ChunkResult, weights: str | None
    ) -> Iterator[tuple[object, ...]]:
        """Yield the parameters of ADD_RUN for each run of a chunk; `weights` is the file of their weights."""
        environment = None
        if result.environment:
            environment = self._number("environments", versions=json.dumps(result.environment))
        shapes = {id(columns): columns for columns, _ in result.values.values()}
        numbers = {name: self._shape(columns) for name, columns in shapes.items()}
        for number, (columns, _) in result.values.items():
            file = weights if number in result.weights else None
            yield (*self._about(runs[number]), DONE, None, environment, numbers[id(columns)], file)
        for number, error in result.errors.items():
            yield (*self._about(runs[number]), FAILED, error, environment, None, None)

    def _about(self, run: Run) -> tuple[object, ...]:
        """Return the columns of a run that are known before the run is computed."""
        about = (run.job.label, run.item.source, self._settings_number(run.item))
        return run.place, run.place, run.key, *about, *run.texts()

    def _settings_number(self, item: Item) -> int:
        if id(item) not in self._settings:
            spec = item.spec
            settings = {"experiment": spec.experiment, "seed": spec.seed, "spec": settings_as_json(spec)}
            number = self._number("settings", **settings)
            self._settings[id(item)] = item, number
        return self._settings[id(item)][1]

    def _number(self, table: str, **values: object) -> int:
        """Return the number of the row with these values, which is added if necessary."""
        row = (table, *values.values())
        if row not in self._numbers:
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            self._connection.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", row[1:])
            query = f"SELECT rowid FROM {table} WHERE ({names}) = ({marks})"
            if (number := self._connection.execute(query, row[1:]).fetchone()) is None:
                raise Damaged(f"the index of its table {table} is damaged")
            (self._numbers[row],) = number
        return self._numbers[row]

    def _shape(self, columns: StoredColumns) -> int | None:
        """Return the number of the shape with these columns, added if necessary; None if there are none."""
        if not columns:
            return None
        if not self._shapes:
            for (shape,) in self._connection.execute("SELECT DISTINCT shape FROM columns").fetchall():
                if not is_number(shape):
                    raise Damaged(f"the number of its columns {shape!r:.40} is damaged")
                self._shapes[read_columns(self._connection, shape)] = shape
        if columns not in self._shapes:
            shape = self._shapes[columns] = max(self._shapes.values(), default=0) + 1
            marks = ", ".join("?" * (2 + len(StoredColumn._fields)))
            rows = ((shape, position, *column) for position, column in enumerate(columns))
            self._connection.executemany(f"INSERT INTO columns VALUES ({marks})", rows)
            self.add_statistics(columns)
        return self._shapes[columns]

    def add_statistics(self, columns: StoredColumns) -> None:
        """Add the columns of a shape to the number tables."""
        for part in table_parts(columns):
            if part.table not in self._statistics:
                self._statistics[part.table] = {*part.table.statistics(self._connection)}
            for column in map(quoted, part.statistics):
                if column not in self._statistics[part.table]:
                    self._refuse_same_name(column, self._statistics[part.table])
                    self._connection.execute(f"ALTER TABLE {part.table.name} ADD COLUMN {column} REAL")
                    self._statistics[part.table].add(column)

    def _refuse_same_name(self, column: str, stored: Iterable[str]) -> None:
        """Raise WriteError if a stored name differs only in case, since SQL ignores case in column names."""
        lower = column.encode().lower()  # as bytes: SQL ignores case only in ASCII letters
        if same := next((name for name in stored if name.encode().lower() == lower), None):
            reason = f"names of statistics must not differ only in case ({same} is stored, {column} is new)"
            raise WriteError(
                f"{self.path}: cannot be written: {reason}: rename the statistic, or start over with --fresh"
            )


def note_planned(connection: sqlite3.Connection, plan: Plan, keys: RunKeys) -> None:
    """Fill the temporary table `planned` with the runs of a plan."""
    connection.execute(PLANNED)
    items = {id(item): number for number, item in enumerate(plan.items())}
    rows = (
        (key, job.place + number, job.label, item.source, items[id(item)])
        for job in plan.jobs()
        for number, (item, key) in enumerate(zip(job.chain, keys.job_keys(job), strict=True))
    )
    connection.executemany("INSERT OR IGNORE INTO temp.planned VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()


def count_planned(connection: sqlite3.Connection) -> tuple[int, int]:
    """Count the runs in the table `planned`, and the completed runs among them."""
    query = (
        "SELECT count(*), count(CASE WHEN status = ? THEN 1 END) FROM temp.planned LEFT JOIN runs USING (key)"
    )
    num_runs, num_done = connection.execute(query, (DONE,)).fetchone()
    return num_runs, num_done


MOST_NUMBER = 2**53
"""The largest number of a run, plan, settings or shape: SQLite adds one to the largest."""
MOST_PLACE = 2**31
"""The largest number of a layer, head or token."""
MOST_CELLS = 2**18
"""The most cells of a grid of layers and heads."""


def is_number(value: object, most: int = MOST_NUMBER) -> bool:
    """Return True for a whole number within the range that stores use."""
    return type(value) is int and 0 <= value <= most


def read_columns(connection: sqlite3.Connection, shape: object) -> StoredColumns:
    """Read the columns of a shape in order. Raises Damaged if they are not as attn wrote them."""
    query = (
        "SELECT position, statistic, layer, head, batch, token FROM columns WHERE shape = ? ORDER BY position"
    )
    columns = []
    for place, (position, statistic, *places) in enumerate(connection.execute(query, (shape,))):
        is_place = [number is None or is_number(number, MOST_PLACE) for number in places]
        if position != place or not isinstance(statistic, str) or not all(is_place):
            raise Damaged(f"column {place} of shape {shape} is damaged")
        columns.append(StoredColumn(statistic, *places))
    num_layers, num_heads = (
        1 + max((getattr(column, name) or 0 for column in columns), default=0) for name in ("layer", "head")
    )
    if num_layers * num_heads > MOST_CELLS:
        raise Damaged(f"a layer or a head of shape {shape} is damaged")
    return tuple(columns)


class StoreContents(NamedTuple):
    """The parts of each run that a store keeps, and the number of the last batch's plan."""

    rows: bool
    weights: bool
    plan: int


def read_contents(connection: sqlite3.Connection) -> StoreContents:
    """Read the single row of the table `store`. Raises Damaged if it is not as attn wrote it."""
    stored = connection.execute("SELECT keeps_rows, keeps_weights, plan FROM store LIMIT 2").fetchall()
    if len(stored) != 1 or not all(map(is_number, stored[0])):
        raise Damaged("its table store is damaged")
    rows, weights, plan = stored[0]
    return StoreContents(bool(rows), bool(weights), plan)


@contextmanager
def open_store(path: Path, *, fresh: bool, rows: bool, weights: bool) -> Iterator[Store]:
    """Open a store, creating it if necessary, for one process at a time; a new store without runs is removed.

    Raises UserError for anything but an attn store and for a store with other contents, which is left
    unchanged; RunError if another process is writing to it; and WriteError if it cannot be written.
    """
    if path.exists():
        check_header(path, any_version=fresh)
    with driving(path), _sqlite_errors(path):
        if fresh and path.exists():
            check_header(path, any_version=True)
            remove(path)
        is_new = not path.exists()
        if is_new:
            create_file(path, rows=rows, weights=weights)
        check_header(path)
        with closing(connect(path)) as connection, signals_seen(connection):
            _refuse_other_contents(path, read_contents(connection), rows=rows, weights=weights)
            used = {name for (name,) in connection.execute("SELECT DISTINCT weights FROM runs")}
            WeightFiles(path).remove_unused(used)
            yield Store(path, connection, rows=rows, weights=weights)
            (has_runs,) = connection.execute("SELECT EXISTS (SELECT 1 FROM runs)").fetchone()
        if is_new and not has_runs:
            remove(path)


def _refuse_other_contents(path: Path, kept: StoreContents, *, rows: bool, weights: bool) -> None:
    errors = []
    for flag, is_requested, is_stored in (("--rows", rows, kept.rows), ("--weights", weights, kept.weights)):
        if is_requested and not is_stored:
            errors.append(
                f"{flag}: {path} was created without this flag: use another file, or start over with --fresh"
            )
        if is_stored and not is_requested:
            errors.append(f"{flag}: {path} was created with this flag: add it, or start over with --fresh")
    if errors:
        raise UserError(*errors)


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Report SQLite's errors on one line, with advice."""
    try:
        yield
    except sqlite3.Error as error:
        advice = advice_on(error) or ": completed runs are kept"
        raise WriteError(f"{path}: cannot be written: {one_line_reason(error)}{advice}") from None
