"""A text that stands ready on standard input, so that `echo TEXT | attn self` reads it."""

import io
import os
import select
import sys
from stat import S_ISFIFO, S_ISREG

WAIT_SECONDS = 0.5
"""How long a pipe may stay silent: some never send anything, and never end."""


def has_piped_text() -> bool:
    """Whether a pipe or a redirected file holds something, which stays there to be read.

    A pipe that is still silent after half a second is left alone, and a line on standard error says so.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed by the caller, or not a file
        return False
    if not (S_ISFIFO(mode) or S_ISREG(mode)):
        return False
    if not select.select([sys.stdin], [], [], WAIT_SECONDS)[0]:
        print("stdin: no text came within half a second, so it is not read; --file - waits", file=sys.stderr)
        return False
    stream = sys.stdin.buffer
    return isinstance(stream, io.BufferedReader) and bool(stream.peek(1))
