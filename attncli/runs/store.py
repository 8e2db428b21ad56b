"""The store of a batch: an SQLite database, to which the driver adds one transaction per chunk.

Where it has the numbers of the runs, in its rows or in parts beside it, only `Figures` know.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attncli.errors import UserError, WriteError, reason_of
from attncli.runs.chunks import DONE, FAILED, Chunk, ChunkResult, ChunkRunner, Run, UnfinishedJob
from attncli.runs.connection import Damaged, advice_on, beside, connect, database_of, signals_seen
from attncli.runs.figures import Blobs, Figures
from attncli.runs.jobs import Item
from attncli.runs.keys import RunKeys, settings_as_json
from attncli.runs.packing import Packed
from attncli.runs.parts import PLACE, Merge, Merged, Parts, refuse_without_pyarrow, runs_of_part
from attncli.runs.plan import Plan
from attncli.runs.store_files import check_header, create_file, driving, is_new_folder, remove
from attncli.runs.stored_columns import StoredColumn, StoredColumns

ENDING = "-weights"


class WeightFiles:
    """The folder `runs.db-weights` of the store `runs.db`."""

    def __init__(self, store: Path) -> None:
        self.folder = beside(store, ENDING)

    def write(self, weights: Mapping[str, np.ndarray]) -> str | None:
        """Save the matrices by the keys of their runs; the name of the file, or None without matrices.

        The file is on disk before its transaction is, so that a store never names half a file.
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
            message = f"cannot be written: {error.strerror}: what was finished is kept"
            raise WriteError(f"{self.folder}: {message}") from None
        return name

    def remove_others(self, named: set[str | None]) -> None:
        """Remove what a crash left behind: our files that the store does not name."""
        for pattern in ("[0-9]*.safetensors", "[0-9]*.safetensors.part"):
            for path in self.folder.glob(pattern):
                if path.name not in named:
                    path.unlink()


def refuse_without_safetensors() -> None:
    """Raise UserError if the package that writes the files is not installed."""
    if find_spec("safetensors") is None:
        raise UserError('--weights: needs: pip install "attncli[models]"')


STEP = "step "
"""What the source of a run begins with that is a step of a training run; its id is the step's number."""
IS_STEP = f"source GLOB '{STEP}*'"

KEYS_A_QUERY = 500

# The number of a run is its place in the plan, if that is free: the place is given twice.
ADD_RUN = """
INSERT INTO runs (run, key, id, source, settings, sentence, context, status, error, environment, shape,
    weights, encoding, figures)
SELECT CASE WHEN EXISTS (SELECT 1 FROM runs WHERE run = ?) THEN NULL ELSE ? END,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE true
ON CONFLICT (key) DO UPDATE SET status = excluded.status, error = excluded.error,
    environment = excluded.environment, shape = excluded.shape, weights = excluded.weights,
    encoding = excluded.encoding, figures = excluded.figures
WHERE status != 'done'
"""

# The runs of a plan, equal ones once; on disk, since there may be many.
PLANNED = """
CREATE TEMP TABLE planned (
    key BLOB PRIMARY KEY,
    place INTEGER NOT NULL,
    id TEXT,
    source TEXT NOT NULL,
    item INTEGER NOT NULL    -- its experiment's place in the plan
) WITHOUT ROWID
"""
# Only what changed is written, since the row of a run also holds its values.
LEAVE_OUT = """
UPDATE runs SET plan = (SELECT plan FROM store)
WHERE plan IS NULL AND key NOT IN (SELECT key FROM temp.planned)
"""
TAKE_IN = """
UPDATE runs SET plan = NULL, id = planned.id, source = planned.source FROM temp.planned
WHERE runs.key = planned.key AND (runs.plan, runs.id, runs.source) IS NOT (NULL, planned.id, planned.source)
"""
# A model that was copied is the same, under another path.
SETTINGS_OF_ITEMS = "SELECT DISTINCT item, settings FROM temp.planned JOIN runs USING (key)"
CHANGE_SETTINGS = """
UPDATE runs SET settings = ? FROM temp.planned
WHERE runs.key = planned.key AND planned.item = ? AND runs.settings = ?
"""


class Store:
    """An open store, which only this process writes."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, figures: Figures, *, rows: bool, weights: bool
    ) -> None:
        self.path = path
        self.rows, self.keeps_weights = rows, weights
        self._connection, self._figures = connection, figures
        # By identity; the item is kept so that its id is not reused.
        self._settings: dict[int, tuple[Item, int]] = {}
        self._shapes: dict[StoredColumns, int] = {}
        self._columns: dict[int, StoredColumns] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._weights = WeightFiles(path)

    def take_plan(self, plan: Plan, keys: RunKeys) -> tuple[int, int]:
        """Note which runs a plan names, with their present ids; how many there are, and how many are done.

        Runs that it does not name stay, with the number of the last plan that did. This is one transaction: a
        crash leaves either the plan before or this one.
        """
        note_planned(self._connection, plan, keys)
        with self._connection:
            self._connection.execute("BEGIN EXCLUSIVE")
            if self._connection.execute(LEAVE_OUT).rowcount:
                self._connection.execute("UPDATE store SET plan = plan + 1")
            self._connection.execute(TAKE_IN)
            items = plan.items()
            for item, settings in self._connection.execute(SETTINGS_OF_ITEMS).fetchall():
                if (number := self._settings_of(items[item])) != settings:
                    self._connection.execute(CHANGE_SETTINGS, (number, item, settings))
        return count_planned(self._connection)

    def count_earlier(self) -> int:
        """How many runs are not in the plan of the last batch."""
        (count,) = self._connection.execute("SELECT count(*) FROM runs WHERE plan IS NOT NULL").fetchone()
        return int(count)

    def planned(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bool]]:
        """The place of each run (of equal runs the first), and whether it is done."""
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
        """The columns and values of a run that is done."""
        query = "SELECT run, shape, encoding, figures FROM runs WHERE key = ?"
        run, shape, encoding, figures = self._connection.execute(query, (key,)).fetchone()
        if shape not in self._columns:
            self._columns[shape] = columns_of(self._connection, shape)
        columns = self._columns[shape]
        packed = self._figures.checked(columns, encoding, figures)
        if packed is None:
            raise Damaged(f"run {run}: its statistics are damaged")
        return columns, self._checked_numbers(columns, packed)

    def numbers(self, columns: StoredColumns, packed: Packed) -> np.ndarray:
        """The numbers of a run that was written now, as `write` gives it."""
        checked = self._figures.checked(columns, *packed)
        assert checked is not None, "its worker packed them"
        return self._checked_numbers(columns, checked)

    def _checked_numbers(self, columns: StoredColumns, packed: Packed) -> np.ndarray:
        _, values, damaged = self._figures.numbers(columns, [packed])
        if damaged:
            raise Damaged(f"{damaged[0]} is damaged")
        numbers: np.ndarray = values[0]
        return numbers

    def steps(self) -> dict[bytes, int]:
        """The step of each run of a training run that is done, by its key."""
        query = f"SELECT key, CAST(id AS INTEGER) FROM runs WHERE {IS_STEP} AND status = ?"
        return dict(self._connection.execute(query, (DONE,)))

    def last_run(self) -> int:
        """The largest number of a run; 0 in an empty store."""
        (number,) = self._connection.execute("SELECT coalesce(max(run), 0) FROM runs").fetchone()
        if not 0 <= number <= MOST_NUMBER:
            raise Damaged(f"run {number}: its number is damaged")
        return int(number)

    def remove_steps(self, first: int, last: int | None = None) -> None:
        """Remove that step of a training run and those after it, up to the last."""
        with self._connection:
            query = f"DELETE FROM runs WHERE {IS_STEP} AND CAST(id AS INTEGER) BETWEEN ? AND ?"
            self._connection.execute(query, (first, sys.maxsize if last is None else last))

    def replace_values(self, key: bytes, columns: StoredColumns, values: Packed) -> None:
        """Give a run that is done other values: one transaction."""
        with self._connection:
            self._connection.execute("BEGIN EXCLUSIVE")
            query = "UPDATE runs SET shape = ?, encoding = ?, figures = ? WHERE key = ?"
            self._connection.execute(query, (self._shape(columns), *values, key))

    def chunk(self, jobs: tuple[UnfinishedJob, ...]) -> Chunk:
        """Jobs for a worker, with what to keep of them."""
        return Chunk(jobs, rows=self.rows, weights=self.keeps_weights, compress=self._figures.compress)

    def work(self, compute: ChunkRunner) -> ChunkRunner:
        """What a worker does with a chunk, so that `write` takes its result."""
        return self._figures.work(compute)

    def write(self, chunk: Chunk, result: ChunkResult) -> dict[int, Packed]:
        """Write every run of a chunk in one transaction: all of them are stored when this returns.

        What `numbers` takes of those that are done. It raises the refusal of a result.
        """
        if result.refusal is not None:
            raise result.refusal
        runs = chunk.runs()
        weights = {runs[number].key.hex(): matrix for number, matrix in result.weights.items()}
        with self._adding():
            kept = self._figures.keep(result)
            rows = self._rows(runs, result, kept, self._weights.write(weights))
            # In the order of the table, which is quicker.
            self._connection.executemany(ADD_RUN, sorted(rows, key=itemgetter(0)))
        return kept

    @contextmanager
    def _adding(self) -> Iterator[None]:
        """One transaction."""
        try:
            with self._connection:
                self._connection.execute("BEGIN EXCLUSIVE")
                yield
        except BaseException:
            # What was not committed did not happen, including new numbers of settings and shapes.
            for known in (self._settings, self._shapes, self._numbers):
                known.clear()
            raise

    def merges(self) -> list[Merge]:
        """What workers can put together where it is in many small files."""
        return self._figures.merges() if isinstance(self._figures, Parts) else []

    def take_merged(self, merged: Merged) -> None:
        """Take what they put together in the place of what it is from: one transaction."""
        assert isinstance(self._figures, Parts), "nothing else has files"
        with self._adding():
            self._figures.take_merged(merged)
        self._figures.remove_merged(merged)

    def mend(self, parts: Parts) -> None:
        """Forget the runs of lost parts, and take up parts that a batch had written when it was killed."""
        if lost := [(part,) for part in parts.lost()]:
            with self._adding():
                of_parts = [(PLACE.pack(part, 0)[:8],) for (part,) in lost]
                self._connection.executemany("DELETE FROM runs WHERE substr(figures, 1, 8) = ?", of_parts)
                self._connection.executemany("DELETE FROM parts WHERE part = ?", lost)
        parts.remove_unfinished()
        for file in parts.unnamed():
            with self._adding():
                is_needed = self._take_up(file)
            if not is_needed:
                file.unlink()

    def _take_up(self, file: Path) -> bool:
        """Add the runs of a part that are not done yet; whether there are any."""
        if (runs := runs_of_part(file)) is None:
            return False
        about_part = {"file": file.name, "size": file.stat().st_size}
        part = self._number("parts", **about_part)
        num_added = 0
        for row, (about, columns) in enumerate(runs):
            made_with = self._number("environments", versions=about["environment"])
            settings = {"experiment": about["experiment"], "seed": about["seed"], "spec": about["settings"]}
            places = about["run"], about["run"], about["key"], about["id"], about["source"]
            known = (*places, self._number("settings", **settings), None, None)
            shape = self._shape(columns)
            values = (*known, DONE, None, made_with, shape, None, about["encoding"], PLACE.pack(part, row))
            num_added += self._connection.execute(ADD_RUN, values).rowcount
        if not num_added:
            self._connection.execute("DELETE FROM parts WHERE part = ?", (part,))
        return bool(num_added)

    def _rows(
        self, runs: Mapping[int, Run], result: ChunkResult, kept: Mapping[int, Packed], weights: str | None
    ) -> Iterator[tuple[object, ...]]:
        """The parameters of ADD_RUN for each run of a chunk; `weights` is the file with their weights."""
        environment = None
        if result.environment:
            environment = self._number("environments", versions=json.dumps(result.environment))
        shapes = {id(columns): columns for columns, _ in result.values.values()}
        numbers = {name: self._shape(columns) for name, columns in shapes.items()}
        for number, (columns, _) in result.values.items():
            about = self._about(runs[number], has_texts=result.part is None)
            file = weights if number in result.weights else None
            yield (*about, DONE, None, environment, numbers[id(columns)], file, *kept[number])
        for number, error in result.errors.items():
            yield (*self._about(runs[number]), FAILED, error, environment, None, None, None, None)

    def _about(self, run: Run, *, has_texts: bool = True) -> tuple[object, ...]:
        """What is known of a run before it is computed, unless a part has it."""
        about = (run.job.label, run.item.source, self._settings_of(run.item))
        return run.place, run.place, run.key, *about, *(run.texts() if has_texts else (None, None))

    def _settings_of(self, item: Item) -> int:
        if id(item) not in self._settings:
            spec = item.spec
            settings = {"experiment": spec.experiment, "seed": spec.seed, "spec": settings_as_json(spec)}
            number = self._number("settings", **settings)
            self._settings[id(item)] = item, number
        return self._settings[id(item)][1]

    def _number(self, table: str, **values: object) -> int:
        """The number of the row with these values, which is added if necessary."""
        row = (table, *values.values())
        if row not in self._numbers:
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            self._connection.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", row[1:])
            query = f"SELECT rowid FROM {table} WHERE ({names}) = ({marks})"
            if (number := self._connection.execute(query, row[1:]).fetchone()) is None:
                raise Damaged(f"the index of its table {table} is damaged")
            (self._numbers[row],) = number
        return self._numbers[row]

    def _shape(self, columns: StoredColumns) -> int:
        if not self._shapes:
            for (shape,) in self._connection.execute("SELECT DISTINCT shape FROM columns").fetchall():
                if not is_number(shape):
                    raise Damaged(f"the number of its columns {shape!r:.40} is damaged")
                self._shapes[columns_of(self._connection, shape)] = shape
        if columns not in self._shapes:
            shape = self._shapes[columns] = max(self._shapes.values(), default=0) + 1
            marks = ", ".join("?" * (2 + len(StoredColumn._fields)))
            rows = ((shape, position, *column) for position, column in enumerate(columns))
            self._connection.executemany(f"INSERT INTO columns VALUES ({marks})", rows)
        return self._shapes[columns]


def note_planned(connection: sqlite3.Connection, plan: Plan, keys: RunKeys) -> None:
    """Put the runs of a plan into the temporary table `planned`."""
    connection.execute(PLANNED)
    items = {id(item): number for number, item in enumerate(plan.items())}
    rows = (
        (key, job.place + number, job.label, item.source, items[id(item)])
        for job in plan.jobs()
        for number, (item, key) in enumerate(zip(job.chain, keys.of_job(job), strict=True))
    )
    connection.executemany("INSERT OR IGNORE INTO temp.planned VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()


def count_planned(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many runs the table `planned` names, and how many of these are done."""
    query = (
        "SELECT count(*), count(CASE WHEN status = ? THEN 1 END) FROM temp.planned LEFT JOIN runs USING (key)"
    )
    num_runs, num_done = connection.execute(query, (DONE,)).fetchone()
    return num_runs, num_done


MOST_NUMBER = 2**53
"""Of runs, plans, settings and shapes: SQLite adds one to the largest."""
MOST_PLACE = 2**31
"""Of layers, heads and tokens."""
MOST_CELLS = 2**18
"""Of a grid of layers and heads."""


def is_number(value: object, most: int = MOST_NUMBER) -> bool:
    """Whether a value that was read is a whole number as stores have them."""
    return type(value) is int and 0 <= value <= most


def columns_of(connection: sqlite3.Connection, shape: object) -> StoredColumns:
    """The columns of a shape, in order. Raises Damaged where they are not as they were written."""
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


class KeptOfRuns(NamedTuple):
    """What a store keeps of each run, and the number of the plan of the last batch."""

    rows: bool
    weights: bool
    plan: int


def kept_of(connection: sqlite3.Connection) -> KeptOfRuns:
    """What the one row of the table store says. Raises Damaged where it is not as it was written."""
    stored = connection.execute("SELECT keeps_rows, keeps_weights, plan FROM store LIMIT 2").fetchall()
    if len(stored) != 1 or not all(map(is_number, stored[0])):
        raise Damaged("its table store is damaged")
    rows, weights, plan = stored[0]
    return KeptOfRuns(bool(rows), bool(weights), plan)


@contextmanager
def open_store(
    path: Path, *, fresh: bool, rows: bool, weights: bool, in_folder: bool = False
) -> Iterator[Store]:
    """The store of that name, created if necessary, for one process at a time.

    It is one file, or a folder with Parquet parts. Raises UserError for anything but an attn store, and for a
    store with other contents, which is left unchanged; RunError if another process is writing it; WriteError
    if it cannot be written.
    """
    is_folder = in_folder and not path.is_file()
    if path.is_dir() and not in_folder:
        raise UserError(f"{path}: is a folder: steps of a training run are kept in one file, FILE.db")
    is_new = is_new_folder(path) if is_folder else not path.exists()
    if not is_new:
        check_header(path, any_version=fresh)
    if is_folder:
        _prepare_folder(path, weights=weights)
    with driving(path) as word, _sqlite_errors(path):
        if fresh and path.exists():
            if not is_new:
                check_header(path, any_version=True)
            remove(path)
        if not database_of(path).exists():
            create_file(path, rows=rows, weights=weights)
        check_header(path)
        with closing(connect(database_of(path), is_shared=is_folder)) as connection, signals_seen(connection):
            _refuse_other_keeping(path, kept_of(connection), rows=rows, weights=weights)
            named = {name for (name,) in connection.execute("SELECT DISTINCT weights FROM runs")}
            WeightFiles(path).remove_others(named)
            if not is_folder:
                yield Store(path, connection, Blobs(), rows=rows, weights=weights)
                return
            parts = Parts(connection, database_of(path), word)
            store = Store(path, connection, parts, rows=rows, weights=weights)
            store.mend(parts)
            yield store
            store.mend(parts)  # a worker may have died after it wrote a part, before it said so
            connection.execute("PRAGMA journal_mode = DELETE")


def figures_of(path: Path, connection: sqlite3.Connection) -> Figures:
    """What reads the numbers of a store that is open."""
    return Parts(connection, database_of(path)) if path.is_dir() else Blobs()


def _prepare_folder(path: Path, *, weights: bool) -> None:
    """Make the folder of a store if necessary."""
    refuse_without_pyarrow(path)
    if weights:
        raise UserError(f"--weights: needs a store in one file: -o {path.name}.db")
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise WriteError(f"-o {path}: cannot be written: {error.strerror}") from None


def _refuse_other_keeping(path: Path, kept: KeptOfRuns, *, rows: bool, weights: bool) -> None:
    errors = []
    for flag, asked, is_kept in (("--rows", rows, kept.rows), ("--weights", weights, kept.weights)):
        if asked and not is_kept:
            errors.append(f"{flag}: {path} was created without it: give another name, or --fresh")
        if is_kept and not asked:
            errors.append(f"{flag}: {path} was created with it: give it again, or --fresh")
    if errors:
        raise UserError(*errors)


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as one line that says what was kept."""
    try:
        yield
    except sqlite3.Error as error:
        kept = advice_on(error) or ": what was finished is kept"
        raise WriteError(f"{path}: cannot be written: {reason_of(error)}{kept}") from None
