"""`--explain` on a terminal, a step at a time, and `--step N`, one of them."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import IO, TYPE_CHECKING

from attncli.cli.display import MAX_DIGITS
from attncli.cli.terminal.walk import pause, show
from attncli.errors import UserError
from attncli.plain_text import plain_text
from attncli.views import VIEWS, Display, Write

if TYPE_CHECKING:
    from attncli.report import Report


def checked_step(step: str | None, view: str, display: Display) -> int | None:
    """The number of --step; UserError where it is none, or the view shows no steps."""
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
    """The reports; UserError for one that has no such step."""
    for report in reports:
        count = len(report.steps)
        if step is not None and not count:
            raise UserError("--step: the report has no steps: it was made without --explain")
        if step is not None and step > count:
            raise UserError(f"--step: must be from 1 to {count}, the number of steps (got {step})")
        yield report


def walk_steps(reports: "Iterable[Report]", write: Write, stream: IO[str], display: Display) -> None:
    """Each step of an explanation on a screen of its own, until the reader ends it."""
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
