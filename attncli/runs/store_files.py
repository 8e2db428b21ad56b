"""The files of a store: which names ask for one, which files are one, and who may write it.

A store is one SQLite file, or a folder with such a file and Parquet parts beside it.
"""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from attncli.errors import RunError, UserError, WriteError
from attncli.runs.connection import beside, database_of, refuse_special_files
from attncli.runs.parts import PART, UNFINISHED
from attncli.runs.schema import APPLICATION_ID, CATALOGUE_ID, SCHEMA_VERSION, create
from attncli.system.files import CATALOGUE, is_file_name
from attncli.system.platforms import lock_file

MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100


def is_new_folder(path: Path) -> bool:
    """Whether a folder store can begin here: the path is free, or has only what a crash leaves of one."""
    if not path.is_dir():
        return not path.exists() and not is_file_name(path)
    return all(_is_of_folder(file.name) and file.name != CATALOGUE for file in path.iterdir())


def _is_of_folder(name: str) -> bool:
    """Whether a folder store has files of that name."""
    is_part = PART.fullmatch(name.removesuffix(UNFINISHED))
    return bool(is_part) or name in {f"{CATALOGUE}{ending}" for ending in ("", "-lock", "-new", "-journal")}


def check_header(path: Path, *, any_version: bool = False) -> None:
    """Raise UserError if a path is not a store, or has an unknown version; SQLite does not open it."""
    database, is_folder = database_of(path), path.is_dir()
    if is_folder and not os.path.lexists(database):
        raise UserError(f"{path}: is not an attn store, left unchanged: give a folder that -o FOLDER/ wrote")
    refuse_special_files(database)
    try:
        with database.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    version, application = (int.from_bytes(header[at : at + 4], "big") for at in (60, 68))
    if not header.startswith(MAGIC) or application != (CATALOGUE_ID if is_folder else APPLICATION_ID):
        instead = "give a file that -o FILE.db wrote, or a new name to write one"
        raise UserError(f"{path}: is not an attn store, left unchanged: {instead}")
    if version != SCHEMA_VERSION and not any_version:
        raise UserError(
            f"{path}: is a store of version {version}, and this attn reads and writes version "
            f"{SCHEMA_VERSION}: left unchanged: give another name, or start over with --fresh"
        )


def is_driven(path: Path) -> bool:
    """Whether a process is writing a store."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(beside(database_of(path), "-lock"), flags)
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
def driving(path: Path) -> Iterator[str]:
    """The right to write a store, for one process at a time; the system releases it when the process dies.

    A folder must be there. The lock has the number of the process and a word of this batch alone, which is
    given, so that workers can tell that they see the same folder.
    """
    lock, word = beside(database_of(path), "-lock"), secrets.token_hex(8)
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise WriteError(f"-o {path}: cannot be written: {error.strerror}") from None
        try:
            lock_file(descriptor)
        except BlockingIOError:
            owner = (os.read(descriptor, 64).decode(errors="replace").split() or ["unknown"])[0]
            os.close(descriptor)
            raise RunError(
                f"{path}: is being written by another attn (process {owner}): wait for it"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise WriteError(f"-o {path}: cannot be locked: {error.strerror}") from None
        # Between opening and locking, the one before may have removed the file: then nobody else sees ours.
        with suppress(FileNotFoundError):
            if lock.stat().st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {word}".encode())
        os.fsync(descriptor)
        yield word
    finally:
        lock.unlink(missing_ok=True)  # while it is locked, so that nobody locks it in between
        os.close(descriptor)


def create_file(path: Path, *, rows: bool, weights: bool) -> None:
    """Create an empty store in one step: a crash never leaves an incomplete file. A folder must be there."""
    database = database_of(path)
    part = beside(database, "-new")
    part.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(part)) as connection:
            create(connection, rows=rows, weights=weights, has_parts=path.is_dir())
        part.replace(beside(database, ""))
    finally:
        part.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a store and its log; the database last, so that an interruption leaves a store."""
    for file in path.iterdir() if path.is_dir() else ():
        if PART.fullmatch(file.name.removesuffix(UNFINISHED)):
            file.unlink(missing_ok=True)
    for ending in ("-wal", "-shm", "-journal", ""):
        beside(database_of(path), ending).unlink(missing_ok=True)
