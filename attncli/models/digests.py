"""Digests of files, and the user's cache folder, where the digests of large files are stored."""

import errno
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from attncli.system.plain_text import parsed_json

LARGE_BYTES = 8 * 2**20
"""Files smaller than this are read within 7 ms, so their digests are not cached."""
BLOCK_BYTES = 2**20
SETTLED_SECONDS = 2.0
"""A file changed more recently than this may change again within the same tick of its file system's clock."""


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for data that can be recreated.

    Raises OSError for a user without a home.
    """
    caches = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(caches) if caches else Path.home() / ".cache") / "attncli" / name
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "no home folder: set XDG_CACHE_HOME") from None


def content_digest(path: Path, on_read: Callable[[], None] = lambda: None) -> str:
    """Return the SHA-256 of a file, the same on every machine. Raises OSError if the file cannot be read.

    A large file's digest is cached together with the file's state: its device, inode, size, modification
    time, and the time at which its inode last changed, which no program can set back. `on_read` is called
    after each block.
    """
    with path.open("rb") as file:
        state = _file_state(file)
        note = None
        if os.fstat(file.fileno()).st_size >= LARGE_BYTES:
            with suppress(OSError):
                note = cache_folder("digests") / sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        if note is not None and (noted := _noted(note, state)) is not None:
            return noted
        digest = sha256()
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            on_read()
        settled = time.time() - os.fstat(file.fileno()).st_ctime > SETTLED_SECONDS
        if note is not None and settled and _file_state(file) == state:
            _write_note(note, state, digest.hexdigest())
    return digest.hexdigest()


def _file_state(file: BinaryIO) -> list[int]:
    about = os.fstat(file.fileno())
    return [about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def _noted(note: Path, state: list[int]) -> str | None:
    try:
        noted = parsed_json(note.read_bytes())
    except (OSError, ValueError):
        return None
    if isinstance(noted, dict) and noted.get("state") == state and isinstance(noted.get("sha256"), str):
        return str(noted["sha256"])
    return None


def _write_note(note: Path, state: list[int], digest: str) -> None:
    """Write the note atomically. If writing fails, the file itself is read again next time."""
    part = note.with_name(f"{note.name}.{os.getpid()}")
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps({"state": state, "sha256": digest}), encoding="utf-8")
            part.replace(note)
        finally:
            part.unlink(missing_ok=True)
