"""How far long work has come, on a line of its own."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOWN_AFTER_SECONDS = 1.0
BETWEEN_SECONDS = 0.1
CLEAR = "\r\x1b[K"


@contextmanager
def progress_line() -> Iterator[Callable[[float], None] | None]:
    """A function to call with the share that is done; None where standard error is no terminal.

    The line appears once the work has taken a second, and is gone when the work is.
    """
    if not sys.stderr.isatty():
        yield None
        return
    begun = time.monotonic()
    shown_at = 0.0

    def show(share: float) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if share >= 1 and shown_at:
            shown_at = 0.0
            print(CLEAR, end="", file=sys.stderr, flush=True)
            return
        if now - begun > SHOWN_AFTER_SECONDS and now - shown_at > BETWEEN_SECONDS and share > 0:
            shown_at = now
            left = (now - begun) * (1 - share) / share
            print(f"{CLEAR}{share:4.0%}, about {left:.0f} s left", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown_at:
            print(CLEAR, end="", file=sys.stderr, flush=True)
