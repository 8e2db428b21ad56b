"""Reports as JSON Lines: one report a line."""

from collections.abc import Iterable
from typing import TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.json import dumps


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """The same data as json, a line a report, flushed so that a reader can follow."""
    for report in reports:
        stream.write(dumps(report.to_data()) + "\n")
        stream.flush()
