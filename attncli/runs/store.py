"""The store of a batch: one SQLite file, to which the driver adds one transaction per chunk."""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path

import numpy as np

from attncli.errors import RunError, UserError, WriteError
from attncli.runs.plan import TEXT_KEYS, Item, Plan, RunKeys, resolved_settings
from attncli.runs.report_values import Column, Columns
from attncli.runs.runner import DONE, FAILED, Chunk, ChunkResult, Run

APPLICATION_ID = 0x6174746E  # "attn" in the file's header
SCHEMA_VERSION = 2
KNOWN_VERSIONS = (1, SCHEMA_VERSION)
HEADER_BYTES = 100

# The 256 bytes in order, so that the place of a byte is its number.
BYTES = f"X'{bytes(range(256)).hex()}'"

TABLES = """
-- One row: what is kept of each run, and the number of the plan of the last batch.
CREATE TABLE store (
    keeps_rows INTEGER NOT NULL,
    keeps_weights INTEGER NOT NULL,
    plan INTEGER NOT NULL DEFAULT 1
);
-- The resolved settings of an experiment, as JSON, without its texts.
CREATE TABLE settings (
    settings INTEGER PRIMARY KEY,
    experiment TEXT NOT NULL,
    seed INTEGER NOT NULL,
    spec TEXT NOT NULL,
    UNIQUE (experiment, spec)
);
-- The versions that runs were made with, as JSON.
CREATE TABLE environments (environment INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE);
-- What the figures of a run are, by their position; runs of the same shape share these rows.
CREATE TABLE columns (
    shape INTEGER NOT NULL,
    position INTEGER NOT NULL,
    statistic TEXT NOT NULL,
    layer INTEGER,
    head INTEGER,
    batch INTEGER,
    token INTEGER,
    PRIMARY KEY (shape, position)
) WITHOUT ROWID;
CREATE TABLE runs (
    run INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,         -- SHA-256 of settings and texts
    id TEXT,                          -- the prompt's id, or its line in the last plan that names the run
    source TEXT NOT NULL,             -- where it was planned
    settings INTEGER NOT NULL REFERENCES settings,
    sentence TEXT,
    context TEXT,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    error TEXT,
    environment INTEGER REFERENCES environments,
    plan INTEGER,                     -- the last plan that names it; NULL for that of the last batch
    shape INTEGER,
    weights TEXT,                     -- the file beside the store that has this run's weights
    figures BLOB                      -- float64 numbers, little end first, in the order of their columns
);
-- Powers of two, to read float64 numbers in SQL: 2^(exponent - 1023); none for infinity and NaN.
CREATE TABLE powers (exponent INTEGER PRIMARY KEY, power REAL);
"""

# A float64 is (-1)^sign * (1 + mantissa / 2^52) * 2^(exponent - 1023), or mantissa / 2^52 * 2^-1022 where the
# exponent is 0. Every step below is exact, so the view gives the very numbers that were stored.
TIDY = """
CREATE VIEW tidy AS
WITH bytes AS (
    SELECT run, id, layer, head, batch, token, statistic, {bytes}
    FROM runs JOIN columns USING (shape) WHERE status = 'done' AND plan IS NULL
),
parts AS (
    SELECT *, b7 >> 7 AS negative, ((b7 & 127) << 4) | (b6 >> 4) AS exponent,
        (((b6 & 15) << 48) + (b5 << 40) + (b4 << 32) + (b3 << 24) + (b2 << 16) + (b1 << 8) + b0)
            / 4503599627370496.0 AS fraction
    FROM bytes
)
SELECT run, id, layer, head, {places}statistic,
    (1 - 2 * negative) * ((exponent > 0) + fraction) * power AS value
FROM parts JOIN powers USING (exponent)
"""


# How a store of version 1 is read: its only plan names all its runs.
READ_VERSION_1 = """
CREATE TEMP VIEW store AS SELECT *, 1 AS plan FROM main.store;
CREATE TEMP VIEW runs AS SELECT *, NULL AS plan FROM main.runs;
"""


def _tidy(*, rows: bool) -> str:
    byte = "instr({alphabet}, substr(figures, 8 * position + {place}, 1)) - 1 AS b{number}"
    parts = (byte.format(alphabet=BYTES, place=i + 1, number=i) for i in range(8))
    return TIDY.format(bytes=", ".join(parts), places="batch, token, " if rows else "")


def create(connection: sqlite3.Connection, *, rows: bool, weights: bool) -> None:
    """An empty store."""
    connection.executescript(TABLES)
    connection.execute(_tidy(rows=rows))
    powers = [(exponent, 2.0 ** (max(exponent, 1) - 1023)) for exponent in range(2047)]
    connection.executemany("INSERT INTO powers VALUES (?, ?)", [*powers, (2047, None)])
    connection.execute("INSERT INTO store (keeps_rows, keeps_weights) VALUES (?, ?)", (rows, weights))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a store, its log included."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection) -> None:
    """Upgrade a store of version 1 to this version, in one transaction and without loss."""
    connection.execute("BEGIN IMMEDIATE")
    (rows,) = connection.execute("SELECT keeps_rows FROM store").fetchone()
    connection.execute("ALTER TABLE store ADD COLUMN plan INTEGER NOT NULL DEFAULT 1")
    connection.execute("ALTER TABLE runs ADD COLUMN plan INTEGER")
    connection.execute("DROP VIEW tidy")
    connection.execute(_tidy(rows=bool(rows)))
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.commit()


SUFFIXES = (".db", ".sqlite", ".sqlite3")
MAGIC = b"SQLite format 3\0"
CACHE_KIB = 64 * 2**10
LOG_PAGES = 16 * 2**10


def is_store_name(path: str) -> bool:
    """Whether a name given to -o asks for a store."""
    return Path(path).suffix.lower() in SUFFIXES


def beside(path: Path, ending: str) -> Path:
    """`runs.db-lock` for `runs.db`: files that belong to a store are beside it, not beside a link to it."""
    file = path.resolve() if path.is_symlink() else path
    return file.with_name(file.name + ending)


def check_header(path: Path, *, any_version: bool = False) -> None:
    """UserError if a file is not a store, or has an unknown version; SQLite does not open it."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(MAGIC) or application != APPLICATION_ID:
        instead = "give a file that -o FILE.db wrote, or a new name to write one"
        raise UserError(f"{path}: is not an attn store, left unchanged: {instead}")
    if version not in KNOWN_VERSIONS and not any_version:
        raise UserError(
            f"{path}: is a store of version {version}, and this attn writes version {SCHEMA_VERSION}: "
            "left unchanged (--fresh starts over)"
        )


def is_driven(path: Path) -> bool:
    """Whether a process is writing a store."""
    import fcntl

    try:
        descriptor = os.open(beside(path, "-lock"), os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def driving(path: Path) -> Iterator[None]:
    """The right to write a store, for one process at a time; the system releases it when the process dies."""
    import fcntl

    lock = beside(path, "-lock")
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise WriteError(f"-o {path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunError(
                f"{path}: is being written by another attn (process {owner}): wait for it"
            ) from None
        # Between opening and locking, the one before may have removed the file: then nobody else sees ours.
        with suppress(FileNotFoundError):
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def create_file(path: Path, *, rows: bool, weights: bool) -> None:
    """Create an empty store in one step: a crash never leaves an incomplete file."""
    part = beside(path, "-new")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part)) as connection:
            create(connection, rows=rows, weights=weights)
        part.replace(beside(path, ""))
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a store and its log; the log first, so that what is left is always a complete store."""
    for ending in ("-wal", "-shm", ""):
        beside(path, ending).unlink(missing_ok=True)


UNCHANGING = "ro&immutable=1"
SECONDS_TO_WRITE, SECONDS_TO_READ = 30.0, 5.0
"""How long another program may lock the store: an editor of tables that has not saved yet."""


def _opened(path: Path, mode: str, seconds: float = SECONDS_TO_READ) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=seconds)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing store, in WAL mode: others can read while one process writes."""
    connection = _opened(path, "rw", SECONDS_TO_WRITE)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    # Otherwise, with many runs per chunk, every page is read again and copied from the log after each chunk.
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, in which stores of every version have the tables of this version.

    If it may write, it recovers the log that a crash left.
    """
    log = beside(path, "-wal")
    mode = "rw"
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Without a log nobody is writing, and SQLite does not have to create one, which it could not.
        mode = "ro" if log.exists() else UNCHANGING
    connection = _opened(path, mode)
    try:
        version_of(connection)
    except sqlite3.OperationalError as error:
        # A full disk has no room for the files beside the store; what is in a log needs them.
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR or (log.exists() and log.stat().st_size):
            raise
        connection.close()
        connection = _opened(path, UNCHANGING)
    if version_of(connection) == 1:
        connection.executescript(READ_VERSION_1)
    connection.execute("PRAGMA query_only = ON")
    return connection


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
    """UserError if the package that writes the files is not installed."""
    if find_spec("safetensors") is None:
        raise UserError('--weights: needs: pip install "attncli[models]"')


STEP = "step "
"""What the source of a run begins with that is a step of a training run; its id is the step's number."""
IS_STEP = f"source GLOB '{STEP}*'"

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

    def count_earlier(self) -> int:
        """How many runs are not in the plan of the last batch."""
        (count,) = self._connection.execute("SELECT count(*) FROM runs WHERE plan IS NOT NULL").fetchone()
        return int(count)

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

    def steps(self) -> dict[bytes, int]:
        """The step of each run of a training run that is done, by its key."""
        query = f"SELECT key, CAST(id AS INTEGER) FROM runs WHERE {IS_STEP} AND status = ?"
        return dict(self._connection.execute(query, (DONE,)))

    def last_run(self) -> int:
        """The largest number of a run; 0 in an empty store."""
        (number,) = self._connection.execute("SELECT coalesce(max(run), 0) FROM runs").fetchone()
        return int(number)

    def remove_steps(self, first: int, last: int | None = None) -> None:
        """Remove that step of a training run and those after it, up to the last."""
        with self._connection:
            query = f"DELETE FROM runs WHERE {IS_STEP} AND CAST(id AS INTEGER) BETWEEN ? AND ?"
            self._connection.execute(query, (first, sys.maxsize if last is None else last))

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
            sentence, context = prompt.text, prompt.context or context
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
