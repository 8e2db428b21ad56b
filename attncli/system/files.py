"""Files from outside: checks before they are read, and the size limit for each kind."""

import errno
import os
import stat
import sys
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, BinaryIO

from attncli.system.plain_text import plain_text
from attncli.system.platforms import is_readable_within

STDIN = "-"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
STORE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
"""The suffixes of a store's file name."""
MEBIBYTE = 2**20
SETTINGS_BYTES = 16 * MEBIBYTE
"""The size limit of a YAML file."""
MODEL_SETTINGS_BYTES = 16 * MEBIBYTE
"""The size limit of a model's config, chat template and similar files."""
INDEX_BYTES = 64 * MEBIBYTE
"""The size limit of the index of a model's weights: about 100 bytes per tensor."""
VOCABULARY_BYTES = 128 * MEBIBYTE
"""The size limit of a tokenizer; the largest known ones take 35 MB."""
TEXT_BYTES = 256 * MEBIBYTE
"""The size limit of a text that is read as a whole."""
LOG_BYTES = 64 * MEBIBYTE
"""The size limit of a training log in JSON: about 100 bytes per line."""
LINE_BYTES = 64 * MEBIBYTE
"""The size limit of a line or a sentence in a file that is read line by line."""
PICTURE_BYTES = 1024 * MEBIBYTE
PIPE_BYTES = 4096 * MEBIBYTE
"""The size limit of input from a pipe, which is copied to a file."""
FREELY_UNPACKED, MOST_UNPACKED = 64 * MEBIBYTE, 100
"""The number of bytes that any file may unpack to, and the largest growth allowed for larger files."""
BLOCK_BYTES = 2**16
WAIT_SECONDS = 1
"""Seconds after which a message says that attn is waiting for a pipe's first byte or its end."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""The names of everything that is not a regular file, by the type in its mode."""


def is_store_name(name: str) -> bool:
    """True if the file name passed to -o is that of a store."""
    return Path(name).suffix.lower() in STORE_SUFFIXES


def not_a_file(mode: int, *, may_be_pipe: bool = False) -> str | None:
    """Return `is a device, not a file` or similar, judged by the mode; None for a regular file."""
    kind = KINDS.get(stat.S_IFMT(mode))
    is_welcome = kind is None or (may_be_pipe and stat.S_ISFIFO(mode))
    return None if is_welcome else f"is {kind}, not a file"


def too_large(most: int) -> str:
    """Return a message saying that a file is larger than the limit for its kind."""
    return f"it is larger than {most // MEBIBYTE:,} MiB, the limit for such a file"


def check_file(path: str | Path, most: int | None = None, *, may_be_pipe: bool = False) -> os.stat_result:
    """Return the system's information on a file.

    Raises OSError if it is not a regular file or has more than `most` bytes. Does not open the file, because
    opening a pipe would wait for its writer.
    """
    about = Path(path).stat()
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if wrong := not_a_file(about.st_mode, may_be_pipe=may_be_pipe):
        raise OSError(errno.EINVAL, f"it {wrong}", str(path))
    if most is not None and about.st_size > most:
        raise OSError(errno.EFBIG, too_large(most), str(path))
    return about


def open_file(path: str | Path, most: int | None = None, *, may_be_pipe: bool = False) -> BufferedReader:
    """Open a file for reading, waiting for the writer of a named pipe. Raises OSError like `check_file`."""
    check_file(path, most, may_be_pipe=may_be_pipe)
    # Open it without waiting, because it may have become a pipe since it was checked.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    try:
        mode = os.fstat(file.fileno()).st_mode
        if wrong := not_a_file(mode, may_be_pipe=may_be_pipe):
            raise OSError(errno.EINVAL, f"it {wrong}", str(path))
        if stat.S_ISFIFO(mode) and _has_a_name(path):
            wait_for_bytes(file.fileno(), f"{path}: waiting for a writer of this pipe")
        os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _has_a_name(pipe: str | Path) -> bool:
    """Return True if a pipe has a name in the file system; a shell's `<(...)` has none and is open."""
    resolved = os.path.realpath(pipe)
    return os.path.lexists(resolved) and not resolved.startswith("/dev/fd/")


def wait_for_bytes(file: int, waiting: str) -> None:
    """Wait, however long, for an open pipe's first byte or its end; print `waiting` after a second."""
    if not is_readable_within(file, WAIT_SECONDS):
        print(plain_text(waiting), file=sys.stderr, flush=True)
        is_readable_within(file, None)


def read_whole(path: str | Path, most: int, *, may_be_pipe: bool = False) -> bytes:
    """Return the bytes of a file, or of standard input for `-`.

    Raises OSError like `open_file`, and for more than `most` bytes.
    """
    if path == STDIN:
        return _at_most(stdin_bytes(), most, path)
    with open_file(path, most, may_be_pipe=may_be_pipe) as file:
        return _at_most(file, most, path)


def stdin_bytes() -> BinaryIO:
    """Return standard input with blocking reads, because another program may have made it nonblocking."""
    with suppress(OSError, ValueError):  # not a file known to the system
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


def _at_most(file: IO[bytes], most: int, path: str | Path) -> bytes:
    # Pipes and files of the system (/proc) have no size before they are read, and each read allocates as much
    # memory as it requests, however little it returns.
    blocks: list[bytes] = []
    length = 0
    while length <= most and (block := file.read(min(BLOCK_BYTES, most + 1 - length))):
        blocks.append(block)
        length += len(block)
    if length > most:
        raise OSError(errno.EFBIG, too_large(most), str(path))
    return b"".join(blocks)


def most_unpacked(size: int) -> int:
    """The number of bytes that a compressed file of this size may unpack to."""
    return max(FREELY_UNPACKED, MOST_UNPACKED * size)


def next_line(file: IO[bytes], most: int = LINE_BYTES) -> bytes:
    """Return the next line, or an empty string at the end.

    Raises OSError for a line of more than `most` bytes.
    """
    line = file.readline(most + 1)
    if len(line) > most:
        raise OSError(errno.EFBIG, f"it has a line of more than {most // MEBIBYTE} MiB")
    return line
