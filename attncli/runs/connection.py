"""Connections to stores: the file is not trusted, and a signal interrupts SQLite."""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from attncli.errors import RunError, UserError, reason_of
from attncli.runs.schema import refuse_other_schema, version_of

CACHE_KIB = 64 * 2**10
LOG_PAGES = 16 * 2**10
UNCHANGING = "ro&immutable=1"
SECONDS_TO_WRITE, SECONDS_TO_READ = 30.0, 5.0
"""How long another program may lock the store: an editor of tables that has not saved yet."""
SECONDS_BETWEEN_TRIES = 0.05
STEPS_BETWEEN_SIGNALS = 50_000
"""Of SQLite's machine: about a millisecond."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 512 * 2**20,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
"""The longest text, blob or row, the longest query, and what a store has no use for."""
LOG, JOURNAL = "-wal", "-journal"
END_OF_NAME = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
"""How a journal ends that names another file, which SQLite would remove."""


def beside(path: Path, ending: str) -> Path:
    """`runs.db-lock` for `runs.db`: files that belong to a store are beside it, not beside a link to it."""
    file = path.resolve() if path.is_symlink() else path
    return file.with_name(file.name + ending)


def refuse_special_files(path: Path) -> None:
    """Raise UserError unless a store and the files beside it are regular files, and the latter no links."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path}: cannot be read: must be a regular file")
    for ending in (LOG, "-shm", JOURNAL, "-lock"):
        file = beside(path, ending)
        try:
            mode = file.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISREG(mode):
            raise UserError(f"{file}: must be a regular file, as attn and SQLite write it: remove it")
    journal = beside(path, JOURNAL)
    if journal.exists() and journal.stat().st_size > len(END_OF_NAME):
        with journal.open("rb") as content:
            content.seek(-len(END_OF_NAME), os.SEEK_END)
            if content.read() == END_OF_NAME:
                raise UserError(f"{journal}: names another file, as no journal of attn does: remove it")


DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Damaged(sqlite3.DatabaseError):
    """What a store has is not what attn wrote."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class Connection(sqlite3.Connection):
    """Sees signals while SQLite computes, and while another program locks the store, for `seconds`."""

    seconds = SECONDS_TO_READ
    ended_by: BaseException | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # A damaged text is shown, with replacement characters.
        self.text_factory = partial(str, encoding="utf-8", errors="replace")
        for category, most in LIMITS.items():
            self.setlimit(category, most)
        self.set_progress_handler(self._seen_signals().__next__, STEPS_BETWEEN_SIGNALS)

    def _seen_signals(self) -> Iterator[bool]:
        """Whether a handler of a signal has raised something, which SQLite would drop.

        A generator: one that goes on is inside `try` already when Python calls the handlers.
        """
        while True:
            try:
                yield self.ended_by is not None
            except GeneratorExit:
                raise
            except BaseException as ended:  # KeyboardInterrupt, SystemExit: raised again by `raise_if_ended`
                self.ended_by = ended

    def raise_if_ended(self) -> None:
        """Raise what a signal asked for while SQLite computed."""
        if self.ended_by is not None:
            ended, self.ended_by = self.ended_by, None
            raise ended

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As SQLite's; it waits for a lock in steps, since SQLite itself would see no signal meanwhile."""
        last = time.monotonic() + self.seconds
        while True:
            try:
                return super().execute(*arguments)
            except sqlite3.OperationalError as error:
                self.raise_if_ended()
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > last:
                    raise
            except UnicodeDecodeError:  # of a message with a damaged name in it
                raise Damaged("malformed database schema") from None
            time.sleep(SECONDS_BETWEEN_TRIES)


def _opened(path: Path, mode: str) -> Connection:
    name = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, timeout=0, factory=Connection)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def connect(path: Path) -> Connection:
    """A connection to an existing store, in WAL mode: others can read while one process writes.

    Raises UserError for a store that is not as attn writes it.
    """
    refuse_special_files(path)
    connection = _opened(path, "rw")
    try:
        connection.seconds = SECONDS_TO_WRITE
        refuse_other_schema(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        # Otherwise, with many runs per chunk, every page is read again and copied from the log after each.
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> Connection:
    """A connection that changes nothing; if it may write, it recovers the log that a crash left.

    UserError for a store that is not as attn writes it.
    """
    refuse_special_files(path)
    log = beside(path, LOG)
    mode = "rw"
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Without a log nobody is writing, and SQLite does not have to create one, which it could not.
        mode = "ro" if log.exists() else UNCHANGING
    connection = _opened(path, mode)
    try:
        try:
            version_of(connection)
        except sqlite3.OperationalError as error:
            # A full disk has no room for the files beside the store, which a log needs.
            is_input_or_output = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR
            if not is_input_or_output or (log.exists() and log.stat().st_size):
                raise
            connection.close()
            connection = _opened(path, UNCHANGING)
        refuse_other_schema(connection, path)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def advice_on(error: sqlite3.Error) -> str:
    """What can be done about a damaged store; nothing for other errors."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return ": restore a copy of it, or start over with --fresh" if code in DAMAGED else ""


@contextmanager
def signals_seen(connection: Connection) -> Iterator[None]:
    """A query that a signal ended raises what the signal asked for."""
    try:
        yield
    except sqlite3.Error:
        connection.raise_if_ended()
        raise


@contextmanager
def opened_to_read(path: Path) -> Iterator[Connection]:
    """A store to read, closed at the end. Raises RunError in one line for what SQLite says meanwhile."""
    try:
        with closing(connect_to_read(path)) as connection, signals_seen(connection):
            yield connection
    except sqlite3.Error as error:
        raise RunError(f"{path}: cannot be read: {reason_of(error)}{advice_on(error)}") from None
