"""Connections to stores, which treat the file as untrusted and let signals interrupt SQLite."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attncli.errors import RunError, UserError, one_line_reason
from attncli.runs.schema import refuse_unknown_schema, schema_version

CACHE_KIB = 64 * 2**10
LOG_PAGES = 16 * 2**10
UNCHANGING = "ro&immutable=1"
SECONDS_TO_WRITE, SECONDS_TO_READ = 30.0, 5.0
"""Seconds that another program may lock the store, such as a table editor with unsaved changes."""
SECONDS_BETWEEN_TRIES = 0.05
STEPS_BETWEEN_SIGNALS = 50_000
"""Instructions of SQLite's virtual machine: about a millisecond."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 512 * 2**20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
"""The longest text, blob, row and query, and limits on features that a store does not use."""
LOG, JOURNAL = "-wal", "-journal"
JOURNAL_NAME_MARK = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""The last bytes of a journal that names another file: SQLite would remove the named file."""


def beside(path: Path, ending: str) -> Path:
    """Return `runs.db-lock` for `runs.db`: a store's files are beside the store, not beside a link to it."""
    file = path.resolve() if path.is_symlink() else path
    return file.with_name(file.name + ending)


def refuse_special_files(path: Path) -> None:
    """Raise UserError unless the store, which may be a link, and the files beside it are regular files."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: cannot be read: must be a regular file")
    for ending in (LOG, "-shm", JOURNAL, "-lock"):
        file = beside(path, ending)
        try:
            mode = file.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise UserError(f"{file}: is not a regular file, so attn did not create it: remove {file.name}")
    journal = beside(path, JOURNAL)
    if journal.exists() and journal.stat().st_size > len(JOURNAL_NAME_MARK):
        with journal.open("rb") as content:
            content.seek(-len(JOURNAL_NAME_MARK), os.SEEK_END)
            if content.read() == JOURNAL_NAME_MARK:
                raise UserError(
                    f"{journal}: names another file, so attn did not write this journal: remove the journal"
                )


DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Damaged(sqlite3.DatabaseError):
    """Raised if the store has contents that attn did not write."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Connection(sqlite3.Connection):
    """A connection that handles signals while SQLite computes or waits for a lock, for at most `seconds`."""

    seconds = SECONDS_TO_READ
    ended_by: BaseException | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Damaged text is shown with replacement characters.
        self.text_factory = partial(str, encoding="utf-8", errors="replace")
        for category, most in LIMITS.items():
            self.setlimit(category, most)
        self.set_progress_handler(self._seen_signals().__next__, STEPS_BETWEEN_SIGNALS)

    def _seen_signals(self) -> Iterator[bool]:
        """Yield True if a signal handler has raised an exception, which SQLite would drop.

        This is a generator because a resumed generator is already inside `try` when Python calls the
        handlers.
        """
        while True:
            try:
                yield self.ended_by is not None
            except GeneratorExit:
                raise
            except BaseException as ended:  # such as KeyboardInterrupt: `raise_if_ended` raises it again
                self.ended_by = ended

    def raise_if_ended(self) -> None:
        """Raise the exception of a signal that arrived while SQLite was computing."""
        if self.ended_by is not None:
            ended, self.ended_by = self.ended_by, None
            raise ended

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement; wait for a lock in steps, because SQLite's own wait ignores signals."""
        last = time.monotonic() + self.seconds
        while True:
            try:
                return super().execute(*arguments)
            except sqlite3.OperationalError as error:
                self.raise_if_ended()
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                    raise
            except UnicodeDecodeError:  # an error message with a damaged name in it
                raise Damaged("malformed database schema") from None
            time.sleep(SECONDS_BETWEEN_TRIES)


def _opened(path: Path, mode: str) -> Connection:
    name = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, timeout=0, factory=Connection)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def connect(path: Path) -> Connection:
    """Open an existing store for writing, in WAL mode, so that other processes can read it meanwhile.

    Raises UserError for a store that attn did not write.
    """
    refuse_special_files(path)
    connection = _opened(path, "rw")
    try:
        connection.seconds = SECONDS_TO_WRITE
        refuse_unknown_schema(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Otherwise, with many runs per chunk, each chunk rereads every page and copies it from the log.
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> Connection:
    """Open a store without changing it; if the folder is writable, recover a log that a crash left behind.

    Raises UserError for a store that attn did not write.
    """
    refuse_special_files(path)
    log = beside(path, LOG)
    mode = "rw"
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Without a log, nobody is writing, and SQLite need not create a log, which would fail.
        mode = "ro" if log.exists() else UNCHANGING
    connection = _opened(path, mode)
    try:
        try:
            schema_version(connection)
        except sqlite3.OperationalError as error:
            # On a full disk SQLite cannot create the files that a log needs.
            is_input_or_output = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR
            if not is_input_or_output or (log.exists() and log.stat().st_size):
                raise
            connection.close()
            connection = _opened(path, UNCHANGING)
        refuse_unknown_schema(connection, path)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def advice_on(error: sqlite3.Error) -> str:
    """Return advice on a damaged store, or an empty string for other errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return ": restore a backup, or start over with --fresh" if code in DAMAGED else ""


@contextmanager
def signals_seen(connection: Connection) -> Iterator[None]:
    """Raise the exception of the signal that ended a query instead of SQLite's error."""
    try:
        yield
    except sqlite3.Error:
        connection.raise_if_ended()
        raise


@contextmanager
def opened_to_read(path: Path) -> Iterator[Connection]:
    """Open a store for reading, and close it at the end. Raises RunError on one line for SQLite's errors."""
    try:
        with closing(connect_to_read(path)) as connection, signals_seen(connection):
            yield connection
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be read: {one_line_reason(error)}{advice_on(error)}") from None
