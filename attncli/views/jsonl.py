"""Reports as JSON Lines: one per line."""

from collections.abc import Iterable
from typing import TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.json import pieces


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """The same data as json, one line per report, flushed so that a reader can follow."""
    for report in reports:
        stream.writelines(pieces(report.fields()))
        stream.write("\n")
        stream.flush()
