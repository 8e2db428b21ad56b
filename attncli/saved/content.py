"""Reading a file or standard input, with its size checked before memory is taken."""

import stat
import sys
from pathlib import Path

from attncli.errors import UserError

STDIN = "-"


def checked_size(file: str) -> int:
    """The size of a regular file in bytes, 0 for a pipe; UserError where there is nothing to read."""
    path = Path(file)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"{file}: is a directory: give a file")
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
        raise UserError(f"{file}: is neither a file nor a pipe")
    return found.st_size


def refuse_size(name: str, needed: int, most_bytes: int | None) -> None:
    """UserError where reading takes more bytes of memory than are free."""
    if most_bytes is not None and needed > most_bytes:
        sizes = f"{needed / 1e9:.3g} GB of memory and {most_bytes / 1e9:.3g} GB are free"
        raise UserError(f"{name}: needs about {sizes}")


def read_text(file: str, *, most_bytes: int | None = None, bytes_each: int = 1) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and its name for errors.

    A file that would need more than `most_bytes`, at `bytes_each` per byte of text, is refused unread.
    """
    if file == STDIN:
        name, content = "standard input", sys.stdin.buffer.read()
    else:
        refuse_size(file, checked_size(file) * bytes_each, most_bytes)
        try:
            name, content = file, Path(file).read_bytes()
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{content[error.start]:02x} in line {line}"
        raise UserError(f"{name}: is not UTF-8 text ({wrong})") from None
