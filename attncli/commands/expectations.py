"""The `--expect` option, which checks reports as they are written and sets the exit code."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from attncli.commands.output import Destination
from attncli.errors import DONE, FAILED, SOME_FAILED, ClosedPipe, discard_stdout
from attncli.settings.fields import Spec
from attncli.system.plain_text import plain_text

if TYPE_CHECKING:
    from attncli.records.report import Report
    from attncli.runs.report_values import Expectations as _Expectations


class Expected:
    """The conditions of --expect, which are checked in every report that is written."""

    def __init__(self, texts: Sequence[str], spec: Spec) -> None:
        """Check the conditions. Raises UserError for an invalid one or a name missing from all reports."""
        self._expectations: _Expectations | None = None
        self._broken: list[str] = []
        if not texts:
            return
        from attncli.runs.report_values import Expectations, parse_conditions, refuse_unknown

        conditions = parse_conditions(texts, "--expect", numbers_only=True)
        refuse_unknown(conditions, [spec], rows=False)
        self._expectations = Expectations(conditions)

    def check(self, report: "Report") -> None:
        """Record the conditions that a report violates."""
        if self._expectations is None:
            return
        from attncli.runs.report_values import values_of

        self._broken += self._expectations.broken(*values_of(report))

    def write(self, to: Destination, reports: "Iterable[Report]") -> None:
        """Write the reports and check each of them."""
        write_checked(to, reports, has_conditions=self._expectations is not None)

    def exit_code(self) -> int:
        """Return 0, or 1 after printing a line on standard error for each violated condition."""
        return exit_code([] if self._expectations is None else [*self._broken, *self._expectations.unmet()])


def write_checked(to: Destination, reports: "Iterable[Report]", *, has_conditions: bool) -> None:
    """Write reports, checked as they are read; with conditions, read all of them even if the pipe closes."""
    iterator = iter(reports)
    try:
        to.write(iterator)
    except ClosedPipe:
        if not has_conditions:
            raise
        discard_stdout()
        for _ in iterator:
            pass


def exit_code(unmet: Sequence[str], *, broken: int = 0, failed: int = 0) -> int:
    """Return 1, with lines on standard error, if a condition is violated; else 3 if a run failed, else 0."""
    for line in unmet:
        print(plain_text(line), file=sys.stderr)
    if broken:
        runs = "1 run does" if broken == 1 else f"{broken:,} runs do"
        print(f"{runs} not meet the conditions", file=sys.stderr)
    return FAILED if broken or unmet else SOME_FAILED if failed else DONE
