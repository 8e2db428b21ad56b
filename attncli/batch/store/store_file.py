"""The file of a store: recognised before it is touched, and written by one process at a time."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from attncli.batch.store.schema import (
    APPLICATION_ID,
    HEADER_BYTES,
    KNOWN_VERSIONS,
    READ_VERSION_1,
    SCHEMA_VERSION,
    create,
    version_of,
)
from attncli.errors import RunError, UserError, WriteError

SUFFIXES = (".db", ".sqlite", ".sqlite3")
MAGIC = b"SQLite format 3\0"
CACHE_KIB = 64 * 2**10
LOG_PAGES = 16 * 2**10


def is_store_name(path: str) -> bool:
    """Whether a name given to -o asks for a store."""
    return Path(path).suffix.lower() in SUFFIXES


def beside(path: Path, ending: str) -> Path:
    """`runs.db-lock` for `runs.db`: files that belong to a store are beside it."""
    return path.with_name(path.name + ending)


def check_header(path: Path, *, any_version: bool = False) -> None:
    """UserError if a file is not a store, or has an unknown version; SQLite does not open it."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(MAGIC) or application != APPLICATION_ID:
        raise UserError(f"{path}: is not an attn store: left unchanged, give another name")
    if version not in KNOWN_VERSIONS and not any_version:
        raise UserError(
            f"{path}: is a store of version {version}, and this attn writes version {SCHEMA_VERSION}: "
            "left unchanged (--fresh starts over)"
        )


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
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a store and its log; the log first, so that what is left is always a complete store."""
    for ending in ("-wal", "-shm", ""):
        beside(path, ending).unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing store, in WAL mode: others can read while one process writes."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)
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
    mode = "rw"
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        # Without a log nobody is writing, and SQLite does not have to create one, which it could not.
        mode = "ro" if beside(path, "-wal").exists() else "ro&immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True)
    if version_of(connection) == 1:
        connection.executescript(READ_VERSION_1)
    connection.execute("PRAGMA query_only = ON")
    return connection
