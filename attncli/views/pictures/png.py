"""A report as a PNG picture."""

from collections.abc import Iterable
from typing import IO

from attncli.report import Report
from attncli.views import Display
from attncli.views.pictures.save import save


def write(reports: Iterable[Report], stream: IO[bytes], display: Display) -> None:
    """One picture a report; the same report gives the same bytes."""
    for report in reports:
        save(report, stream, display, "png", {"Software": None})
