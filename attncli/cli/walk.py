"""Text on a terminal one screen at a time, as long as the reader presses Enter: lessons, and `--explain`."""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import IO, TYPE_CHECKING

from attncli.cli.flags import MAX_DIGITS
from attncli.errors import UserError
from attncli.plain_text import plain_text
from attncli.views import VIEWS, Display, Write

if TYPE_CHECKING:
    from attncli.report import Report

LINES = 24
ENDS = ("q", "quit")
CLEAR = "\r\x1b[K"
ABOVE = "\x1b[A"


def can_walk() -> bool:
    """Whether there is a reader: someone who sees a screen and has a key to press."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def screens(text: str, height: int) -> Iterator[str]:
    """The text in parts of at most that many lines, cut before blank lines where there are any."""
    lines = text.rstrip("\n").split("\n")
    while len(lines) > height:
        end = next((i for i in range(height, 0, -1) if not lines[i]), height)
        yield "\n".join(lines[:end]) + "\n"
        lines = lines[end:]
    yield "\n".join(lines) + "\n"


def show(text: str) -> bool:
    """Write a text, pausing after each screen but the last; whether the reader continues."""
    *before, last = screens(text, max(_size().lines - 1, 2))
    for screen in before:
        sys.stdout.write(screen)
        if not pause("Enter: more of this"):
            return False
    sys.stdout.write(last)
    return True


def pause(what: str) -> bool:
    """Wait for Enter; the last line says what it does. False where the reader ends: q, or no input."""
    import termios  # which Windows has not

    sys.stdout.flush()
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # keys that were pressed while something was computed
    prompt = f"{what}; q: end "[: _size().columns - 1]
    print(prompt, end="", file=sys.stderr, flush=True)
    answer = ""
    try:
        answer = sys.stdin.readline()
    finally:
        # The line of the prompt is for the screen that follows; Enter has moved the cursor below it.
        can_move = os.environ.get("TERM") != "dumb"
        erased = (ABOVE if answer.endswith("\n") else "") + CLEAR if can_move else "\n"
        print(erased, end="", file=sys.stderr, flush=True)
    return answer != "" and answer.strip().lower() not in ENDS


def _size() -> os.terminal_size:
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((columns or 80, lines or LINES))


def checked_step(step: str | None, view: str, display: Display) -> int | None:
    """The number of --step; UserError where it is not a number, or the view shows no steps."""
    if step is None:
        return None
    if not VIEWS[view].has_steps:
        readable = ", ".join(name for name, row in VIEWS.items() if row.has_steps)
        raise UserError(f"--step: {view} does not show one step alone; it is for {readable}")
    if display.show:
        raise UserError("--step: cannot be combined with --show: give one")
    if not step.isdecimal() or len(step) > MAX_DIGITS or int(step) == 0:
        raise UserError(f"--step: must be the number of a step, from 1 (got {step:.60})")
    return int(step)


def with_step(reports: "Iterable[Report]", step: int | None) -> "Iterator[Report]":
    """The reports; UserError for one without that step."""
    for report in reports:
        count = len(report.steps)
        if step is not None and not count:
            raise UserError("--step: the report has no steps: it was made without --explain")
        if step is not None and step > count:
            raise UserError(f"--step: must be from 1 to {count}, the number of steps (got {step})")
        yield report


def walk_steps(reports: "Iterable[Report]", write: Write, stream: IO[str], display: Display) -> None:
    """Each step of an explanation on its own screen, until the reader quits."""
    for report in reports:
        if not report.steps:
            write([report], stream, display)
        for number, step in enumerate(report.steps, start=1):
            if number > 1 and not pause(f"Enter: {number} of {len(report.steps)}, {plain_text(step.title)}"):
                return
            text = StringIO()
            write([report], text, replace(display, step=number))
            if not show(text.getvalue()):
                return
