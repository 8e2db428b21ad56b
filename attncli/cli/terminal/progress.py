"""How far long work has come, on a line of its own."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attncli.plain_text import plain_text

SHOWN_AFTER_SECONDS = 1.0
BETWEEN_SECONDS = 0.1
CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line on standard error that is written over, and gone when the work is; nothing where no terminal is.

    It appears once the work has taken a second.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.begun = time.monotonic()
        self._shown_at = 0.0

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self.begun

    def show(self, text: Callable[[], str]) -> None:
        """Write the text, where it is time to."""
        now = time.monotonic()
        due = now - self.begun > SHOWN_AFTER_SECONDS and now - self._shown_at > BETWEEN_SECONDS
        if self.is_terminal and due:
            self._shown_at = now
            print(CLEAR, text(), sep="", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room for what is to stay."""
        if self._shown_at:
            self._shown_at = 0.0
            print(CLEAR, end="", file=sys.stderr, flush=True)


@contextmanager
def cleared_line() -> Iterator[ProgressLine]:
    """A line that is gone at the end, however that comes."""
    line = ProgressLine()
    try:
        yield line
    finally:
        line.clear()


class ShownProgress:
    """Called with the share that is done, it says how long the rest takes; what a model writes is written."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    def __call__(self, share: float, /) -> None:
        line = self._line
        if share >= 1:
            line.clear()
        elif share > 0:
            left = line.seconds * (1 - share) / share
            line.show(lambda: f"{share:4.0%}, about {left:.0f} s left")

    def write(self, text: str, /) -> None:
        """On standard error, where a terminal is; line ends stay."""
        if self._line.is_terminal:
            self._line.clear()
            print("\n".join(map(plain_text, text.split("\n"))), end="", file=sys.stderr, flush=True)

    def tell(self, line: str, /) -> None:
        """A line on standard error, which stays."""
        self._line.clear()
        print(plain_text(line), file=sys.stderr)


@contextmanager
def progress_line() -> Iterator[ShownProgress]:
    """What is done, on standard error; nothing where no terminal is."""
    with cleared_line() as line:
        yield ShownProgress(line)


def counted(line: ProgressLine, total: int, kept: int, done: int, failed: int) -> str:
    """`1,234 of 5,000 runs, 310/s, about 12 s left, 2 failed`; the rate is that of what is done now."""
    now = done + failed
    rate = now / max(line.seconds, 1e-9)
    parts = [f"{kept + now:,} of {total:,} runs"]
    if now:
        left = (total - kept - now) / rate
        parts += [f"{readable_rate(rate)}", f"about {readable_seconds(left)} left"]
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def readable_rate(rate: float) -> str:
    """`1,310/s`, `0.25/s`."""
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def readable_seconds(seconds: float) -> str:
    """`12 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
