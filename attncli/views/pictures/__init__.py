"""A report as a picture: drawn by matplotlib, which is imported when there is something to draw."""

import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import IO, Any

from attncli.report import Report
from attncli.views import Display, Write

DOTS_PER_INCH = 150


def writer(kind: str, metadata: Mapping[str, str | None]) -> Write:
    """A view that writes one picture per report; the same report gives the same bytes."""

    def write(reports: Iterable[Report], stream: IO[Any], display: Display) -> None:
        """A character that no font has is an empty box, without a warning."""
        # Before the import: matplotlib logs about its caches and fonts.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        import matplotlib

        from attncli.views.pictures.figure import draw, settings

        for report in reports:
            with matplotlib.rc_context(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matplotlib.rcParams.update(settings())
                figure = draw(report, display)
                figure.savefig(stream, format=kind, metadata=dict(metadata), dpi=DOTS_PER_INCH)

    return write
