"""The store of a batch: one SQLite file, to which the driver adds one transaction per chunk."""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path

from attncli.batch.chunks import DONE, FAILED, Chunk, ChunkResult, Run
from attncli.batch.keys import TEXT_KEYS, RunKeys, resolved_settings
from attncli.batch.plan import Item, Plan
from attncli.batch.store.columns import Column, Columns
from attncli.batch.store.schema import SCHEMA_VERSION, migrate, version_of
from attncli.batch.store.store_file import check_header, connect, create_file, driving, remove
from attncli.batch.store.weight_files import WeightFiles
from attncli.errors import UserError, WriteError

KEYS_A_QUERY = 500

# The number of a run is its place in the plan, if that is free: the place is given twice.
ADD_RUN = """
INSERT INTO runs (run, key, id, source, settings, sentence, context, status, error, environment, shape,
    weights, figures)
SELECT CASE WHEN EXISTS (SELECT 1 FROM runs WHERE run = ?) THEN NULL ELSE ? END,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE true
ON CONFLICT (key) DO UPDATE SET status = excluded.status, error = excluded.error,
    environment = excluded.environment, shape = excluded.shape, weights = excluded.weights,
    figures = excluded.figures
WHERE status != 'done'
"""

# The runs of a plan, equal ones once; on disk, since there may be many.
PLANNED = """
CREATE TEMP TABLE planned (
    key BLOB PRIMARY KEY,
    place INTEGER NOT NULL,
    id TEXT,
    source TEXT NOT NULL,
    item INTEGER NOT NULL,   -- its experiment's place in the plan
    earlier BLOB             -- the key that the store knows it by, where that is one of before
) WITHOUT ROWID
"""
NOTE_EARLIER = """
UPDATE temp.planned SET earlier = :earlier
WHERE key = :key AND :key NOT IN (SELECT key FROM runs) AND :earlier IN (SELECT key FROM runs)
"""
HAS_UNKNOWN = """
SELECT EXISTS (SELECT 1 FROM runs)
    AND EXISTS (SELECT 1 FROM temp.planned WHERE key NOT IN (SELECT key FROM runs))
"""
RENAME = "UPDATE runs SET key = planned.key FROM temp.planned WHERE runs.key = planned.earlier"
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

    def __init__(self, path: Path, connection: sqlite3.Connection, *, rows: bool, weights: bool) -> None:
        self.path = path
        self.rows, self.keeps_weights = rows, weights
        self._connection = connection
        # By identity; the item is kept so that its id is not reused.
        self._settings: dict[int, tuple[Item, int]] = {}
        self._shapes: dict[Columns, int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._weights = WeightFiles(path)

    def take_plan(self, plan: Plan, keys: RunKeys) -> tuple[int, int]:
        """Note which runs a plan names, with their present ids; how many there are, and how many are done.

        Runs that it does not name stay, with the number of the last plan that did. This is one transaction: a
        crash leaves either the plan before or this one.
        """
        note_planned(self._connection, plan, keys)
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(RENAME)
            self._connection.execute("UPDATE temp.planned SET earlier = NULL WHERE earlier NOT NULL")
            if self._connection.execute(LEAVE_OUT).rowcount:
                self._connection.execute("UPDATE store SET plan = plan + 1")
            self._connection.execute(TAKE_IN)
            items = plan.items()
            for item, settings in self._connection.execute(SETTINGS_OF_ITEMS).fetchall():
                if (number := self._settings_of(items[item])) != settings:
                    self._connection.execute(CHANGE_SETTINGS, (number, item, settings))
        return count_planned(self._connection)

    def planned(self, keys: Sequence[bytes]) -> dict[bytes, tuple[int, bool]]:
        """The place of each run (of equal runs the first), and whether it is done."""
        found: dict[bytes, tuple[int, bool]] = {}
        for start in range(0, len(keys), KEYS_A_QUERY):
            part = keys[start : start + KEYS_A_QUERY]
            query = (
                "SELECT key, place, status IS ? FROM temp.planned LEFT JOIN runs USING (key) "
                f"WHERE key IN ({', '.join('?' * len(part))})"
            )
            rows = self._connection.execute(query, (DONE, *part))
            found |= {key: (place, bool(is_done)) for key, place, is_done in rows}
        return found

    def values(self, key: bytes) -> tuple[Columns, bytes]:
        """The columns and values of a run that is done."""
        query = "SELECT shape, figures FROM runs WHERE key = ?"
        shape, values = self._connection.execute(query, (key,)).fetchone()
        return columns_of(self._connection, shape), values

    def write(self, chunk: Chunk, result: ChunkResult) -> None:
        """Write every run of a chunk in one transaction: all of them are stored when this returns."""
        runs = chunk.runs()
        weights = {runs[number].key.hex(): matrix for number, matrix in result.weights.items()}
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                rows = sorted(self._rows(runs, result, self._weights.write(weights)), key=itemgetter(0))
                self._connection.executemany(ADD_RUN, rows)  # in the order of the table, which is quicker
        except BaseException:
            # What was not committed did not happen, including new numbers of settings and shapes.
            for known in (self._settings, self._shapes, self._numbers):
                known.clear()
            raise

    def _rows(
        self, runs: Mapping[int, Run], result: ChunkResult, weights: str | None
    ) -> Iterator[tuple[object, ...]]:
        """The parameters of ADD_RUN for each run of a chunk; `weights` is the file with their weights."""
        environment = None
        if result.environment:
            environment = self._number("environments", versions=json.dumps(result.environment))
        shapes = {id(columns): columns for columns, _ in result.values.values()}
        numbers = {name: self._shape(columns) for name, columns in shapes.items()}
        for number, (columns, values) in result.values.items():
            file = weights if number in result.weights else None
            yield (*self._about(runs[number]), DONE, None, environment, numbers[id(columns)], file, values)
        for number, error in result.errors.items():
            yield (*self._about(runs[number]), FAILED, error, environment, None, None, None)

    def _about(self, run: Run) -> tuple[object, ...]:
        """What is known of a run before it is computed."""
        spec, prompt = run.item.spec, run.job.prompt
        sentence, context = (getattr(spec, key, None) for key in TEXT_KEYS)
        if prompt is not None:
            sentence, context = prompt.sentence, prompt.context or context
        about = (run.job.label, run.item.source, self._settings_of(run.item), sentence, context)
        return run.place, run.place, run.key, *about

    def _settings_of(self, item: Item) -> int:
        if id(item) not in self._settings:
            spec = item.spec
            text = json.dumps(resolved_settings(spec), ensure_ascii=False)
            number = self._number("settings", experiment=spec.experiment, seed=spec.seed, spec=text)
            self._settings[id(item)] = item, number
        return self._settings[id(item)][1]

    def _number(self, table: str, **values: object) -> int:
        """The number of the row with these values, which is added if there is none."""
        row = (table, *values.values())
        if row not in self._numbers:
            names, marks = ", ".join(values), ", ".join("?" * len(values))
            self._connection.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", row[1:])
            query = f"SELECT rowid FROM {table} WHERE ({names}) = ({marks})"
            (self._numbers[row],) = self._connection.execute(query, row[1:]).fetchone()
        return self._numbers[row]

    def _shape(self, columns: Columns) -> int:
        if not self._shapes:
            for (shape,) in self._connection.execute("SELECT DISTINCT shape FROM columns").fetchall():
                self._shapes[columns_of(self._connection, shape)] = shape
        if columns not in self._shapes:
            shape = self._shapes[columns] = max(self._shapes.values(), default=0) + 1
            marks = ", ".join("?" * (2 + len(Column._fields)))
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
    connection.executemany("INSERT OR IGNORE INTO temp.planned VALUES (?, ?, ?, ?, ?, NULL)", rows)
    if connection.execute(HAS_UNKNOWN).fetchone()[0] and (earlier := keys.earlier()) is not None:
        pairs = (
            {"key": key, "earlier": before}
            for job in plan.jobs()
            for key, before in zip(keys.of_job(job), earlier.of_job(job), strict=True)
        )
        connection.executemany(NOTE_EARLIER, pairs)
    connection.commit()


def count_planned(connection: sqlite3.Connection) -> tuple[int, int]:
    """How many runs the table `planned` names, and how many of these are done."""
    query = (
        "SELECT count(*), count(CASE WHEN status = ? THEN 1 END) FROM temp.planned "
        "LEFT JOIN runs ON runs.key = coalesce(earlier, planned.key)"
    )
    num_runs, num_done = connection.execute(query, (DONE,)).fetchone()
    return num_runs, num_done


def columns_of(connection: sqlite3.Connection, shape: int) -> Columns:
    """The columns of a shape, in order."""
    query = "SELECT statistic, layer, head, batch, token FROM columns WHERE shape = ? ORDER BY position"
    return tuple(Column(*row) for row in connection.execute(query, (shape,)))


@contextmanager
def open_store(path: Path, *, fresh: bool, rows: bool, weights: bool) -> Iterator[Store]:
    """The store of that name, created if there is none, for one process at a time.

    UserError for a file that is not an attn store or keeps other things, which is left unchanged; RunError if
    another process is writing it; WriteError if it cannot be written.
    """
    if path.exists():
        check_header(path, any_version=fresh)
    with driving(path), _sqlite_errors(path):
        if fresh and path.exists():
            check_header(path, any_version=True)
            remove(path)
        if not path.exists():
            create_file(path, rows=rows, weights=weights)
        check_header(path)
        with closing(connect(path)) as connection:
            if version_of(connection) != SCHEMA_VERSION:
                migrate(connection)
            _refuse_other_keeping(path, connection, rows=rows, weights=weights)
            named = {name for (name,) in connection.execute("SELECT DISTINCT weights FROM runs")}
            WeightFiles(path).remove_others(named)
            yield Store(path, connection, rows=rows, weights=weights)


def _refuse_other_keeping(path: Path, connection: sqlite3.Connection, *, rows: bool, weights: bool) -> None:
    kept = connection.execute("SELECT keeps_rows, keeps_weights FROM store").fetchone()
    errors = []
    for flag, asked, is_kept in zip(("--rows", "--weights"), (rows, weights), kept, strict=True):
        if asked and not is_kept:
            errors.append(f"{flag}: {path} was created without it: give another name, or --fresh")
        if is_kept and not asked:
            errors.append(f"{flag}: {path} was created with it: give it again, or --fresh")
    if errors:
        raise UserError(*errors)


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as one line that says what is kept."""
    try:
        yield
    except sqlite3.Error as error:
        raise WriteError(f"{path}: cannot be written: {error}: what was finished is kept") from None
