"""Files from elsewhere: which may be read, and how much of each kind."""

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
"""Of a store."""
MEBIBYTE = 2**20
SETTINGS_BYTES = 16 * MEBIBYTE
"""Of a YAML file."""
MODEL_SETTINGS_BYTES = 16 * MEBIBYTE
"""Of a model's config, chat template, and the like."""
INDEX_BYTES = 64 * MEBIBYTE
"""Of the index of a model's weights: 100 bytes or so for each tensor."""
VOCABULARY_BYTES = 128 * MEBIBYTE
"""Of a tokenizer; the largest that are known take 35 MB."""
TEXT_BYTES = 256 * MEBIBYTE
"""Of a text that is read whole, and of a log."""
LOG_BYTES = 64 * MEBIBYTE
"""Of the log that a training keeps in JSON: 100 bytes or so for each of its lines."""
LINE_BYTES = 64 * MEBIBYTE
"""Of a line, or a sentence, in a file that is read by them."""
PICTURE_BYTES = 1024 * MEBIBYTE
PIPE_BYTES = 4096 * MEBIBYTE
"""Of what comes through a pipe and is kept in a file meanwhile."""
FREELY_UNPACKED, MOST_UNPACKED = 64 * MEBIBYTE, 100
"""The bytes that any file may unpack to; how many times its own size a larger one may."""
BLOCK_BYTES = 2**16
WAIT_SECONDS = 1
"""When a line says that a pipe is waited for, as it is until its first byte or its end."""
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What is not a file, by the type in its mode."""


def is_store_name(name: str) -> bool:
    """True if a name given to -o is that of a store."""
    return Path(name).suffix.lower() in STORE_SUFFIXES


def not_a_file(mode: int, *, may_be_pipe: bool = False) -> str | None:
    """What stands in the place of a file, by its mode: `is a device, not a file`; None for a file."""
    kind = KINDS.get(stat.S_IFMT(mode))
    is_welcome = kind is None or (may_be_pipe and stat.S_ISFIFO(mode))
    return None if is_welcome else f"is {kind}, not a file"


def too_large(most: int) -> str:
    """That a file has more bytes than are read of its kind."""
    return f"it holds more than {most // MEBIBYTE:,} MiB, the most that is read of such a file"


def check_file(path: str | Path, most: int | None = None, *, may_be_pipe: bool = False) -> os.stat_result:
    """What the system says of a file. OSError for what is not one, and for one of more than `most` bytes.

    Nothing is opened: to open a pipe would wait for who writes to it.
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
    """A file that is open for reading; OSError as `check_file`. A named pipe is waited for."""
    check_file(path, most, may_be_pipe=may_be_pipe)
    # Without waiting: since it was looked at, it may have become a pipe.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    try:
        mode = os.fstat(file.fileno()).st_mode
        if wrong := not_a_file(mode, may_be_pipe=may_be_pipe):
            raise OSError(errno.EINVAL, f"it {wrong}", str(path))
        if stat.S_ISFIFO(mode) and _has_a_name(path):
            wait_for_bytes(file.fileno(), f"{path}: waiting for somebody to write to this pipe")
        os.set_blocking(file.fileno(), True)
    except BaseException:
        file.close()
        raise
    return file


def _has_a_name(pipe: str | Path) -> bool:
    """Whether a pipe is one of the file system's: what a shell has for `<(...)` is open already."""
    resolved = os.path.realpath(pipe)
    return os.path.lexists(resolved) and not resolved.startswith("/dev/fd/")


def wait_for_bytes(file: int, waiting: str) -> None:
    """Wait for the first byte of an open pipe or its end, however late; print `waiting` after a second."""
    if not is_readable_within(file, WAIT_SECONDS):
        print(plain_text(waiting), file=sys.stderr, flush=True)
        is_readable_within(file, None)


def read_whole(path: str | Path, most: int, *, may_be_pipe: bool = False) -> bytes:
    """The bytes of a file, or of standard input for `-`; OSError as `open_file`, and for more than `most`."""
    if path == STDIN:
        return _at_most(stdin_bytes(), most, path)
    with open_file(path, most, may_be_pipe=may_be_pipe) as file:
        return _at_most(file, most, path)


def stdin_bytes() -> BinaryIO:
    """Standard input, whose reads wait for its end: another program may have told it not to."""
    with suppress(OSError, ValueError):  # not a file of the system's
        os.set_blocking(sys.stdin.fileno(), True)
    return sys.stdin.buffer


def _at_most(file: IO[bytes], most: int, path: str | Path) -> bytes:
    # A pipe, and a file of the system's own, has no size before it is read; and each read takes as much
    # memory as it is asked for, however little there is.
    blocks: list[bytes] = []
    length = 0
    while length <= most and (block := file.read(min(BLOCK_BYTES, most + 1 - length))):
        blocks.append(block)
        length += len(block)
    if length > most:
        raise OSError(errno.EFBIG, too_large(most), str(path))
    return b"".join(blocks)


def most_unpacked(size: int) -> int:
    """The bytes that a compressed file of this size may unpack to."""
    return max(FREELY_UNPACKED, MOST_UNPACKED * size)


def line_of(file: IO[bytes], most: int = LINE_BYTES) -> bytes:
    """The next line, empty at the end; OSError for one of more than `most` bytes."""
    line = file.readline(most + 1)
    if len(line) > most:
        raise OSError(errno.EFBIG, f"a line of it holds more than {most // MEBIBYTE} MiB")
    return line
