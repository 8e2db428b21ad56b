"""The progress of long work, on a line of its own."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attncli.plain_text import plain_text

SHOWN_AFTER_SECONDS = 1.0
BETWEEN_SECONDS = 0.1
CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line on standard error, overwritten and finally erased; none unless that is a terminal.

    It appears after a second of work. Called with the fraction done, it shows the time left.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.begun = time.monotonic()
        self._shown_at = 0.0

    @property
    def seconds(self) -> float:
        """Since the work started."""
        return time.monotonic() - self.begun

    def __call__(self, share: float, /) -> None:
        if share >= 1:
            self.clear()
        elif share > 0:
            left = self.seconds * (1 - share) / share
            self.show(lambda: f"{share:4.0%}, about {left:.0f} s left")

    def show(self, text: Callable[[], str]) -> None:
        """Write the text, if an update is due."""
        now = time.monotonic()
        due = now - self.begun > SHOWN_AFTER_SECONDS and now - self._shown_at > BETWEEN_SECONDS
        if self.is_terminal and due:
            self._shown_at = now
            print(CLEAR, text(), sep="", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Erase the line, before output that stays."""
        if self._shown_at:
            self._shown_at = 0.0
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def write(self, text: str, /) -> None:
        """Text that a model generates, on standard error, if that is a terminal; line ends are kept."""
        if self.is_terminal:
            self.clear()
            print("\n".join(map(plain_text, text.split("\n"))), end="", file=sys.stderr, flush=True)

    def tell(self, line: str, /) -> None:
        """A line on standard error that stays."""
        self.clear()
        print(plain_text(line), file=sys.stderr)


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """A progress line, erased at the end even after an error."""
    line = ProgressLine()
    try:
        yield line
    finally:
        line.clear()


def counted(line: ProgressLine, total: int, kept: int, done: int, failed: int) -> str:
    """`1,234 of 5,000 runs, 310/s, about 12 s left, 2 failed`; the rate counts only what was done now."""
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
