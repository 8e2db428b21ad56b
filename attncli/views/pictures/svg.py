"""A report as an SVG picture, its texts as text."""

from collections.abc import Iterable
from typing import TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.pictures.save import save


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """One picture a report; the same report gives the same bytes."""
    for report in reports:
        save(report, stream, display, "svg", {"Date": None, "Creator": None})
