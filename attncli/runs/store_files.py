"""The file of a store: recognize, lock, create and remove it."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from attncli.errors import RunError, UserError, WriteError
from attncli.runs.connection import beside, refuse_special_files
from attncli.runs.schema import APPLICATION_ID, SCHEMA_VERSION, create
from attncli.system.platforms import lock_file

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100
NAME_ADVICE = "give another name, or start over with --fresh"
PACKED_VERSION = 3
"""The schema of attn 0.4."""


def check_header(path: Path, *, any_version: bool = False) -> None:
    """Raise UserError if a file is not a store or has an unknown version, without opening it in SQLite."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder: a store is a single file, which -o FILE.db writes")
    refuse_special_files(path)
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(MAGIC) or application != APPLICATION_ID:
        instead = "give a file that -o FILE.db wrote, or a new name to write one"
        raise UserError(f"{path}: is not an attn store, left unchanged: {instead}")
    if version != SCHEMA_VERSION and not any_version:
        convert = (
            f"use python -m attncli.runs.upgrade {path} NEW.db to convert it, or start over with --fresh"
        )
        raise UserError(
            f"{path}: is a store of version {version}, but this attn reads and writes version "
            f"{SCHEMA_VERSION}: left unchanged: {convert if version == PACKED_VERSION else NAME_ADVICE}"
        )


def is_driven(path: Path) -> bool:
    """Return True if a process is writing to the store."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(beside(path, "-lock"), flags)
    except OSError:
        return False
    try:
        lock_file(descriptor, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def driving(path: Path) -> Iterator[None]:
    """Lock a store for writing; the system releases the lock when the process dies.

    The lock file holds the process id.
    """
    lock = beside(path, "-lock")
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise WriteError(f"-o {path}: cannot be written: {error.strerror}") from None
        try:
            lock_file(descriptor)
        except BlockingIOError:
            owner = os.read(descriptor, 64).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise RunError(
                f"{path}: is being written by another attn process ({owner}): wait until it ends"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise WriteError(f"-o {path}: cannot be locked: {error.strerror}") from None
        # The previous writer may have removed the file between opening and locking: try again.
        with suppress(FileNotFoundError):
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        os.fsync(descriptor)
        yield
    finally:
        lock.unlink(missing_ok=True)  # while the file is locked, so that nobody can lock it first
        os.close(descriptor)


def create_file(path: Path, *, rows: bool, weights: bool) -> None:
    """Create an empty store in one step, so that a crash never leaves an incomplete file."""
    part = beside(path, "-new")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part)) as connection:
            create(connection, rows=rows, weights=weights)
        part.replace(beside(path, ""))
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a store and its log. The database is removed last, so that an interruption leaves a store."""
    for ending in ("-wal", "-shm", "-journal", ""):
        beside(path, ending).unlink(missing_ok=True)
