"""A Report that shows itself: as its page in a notebook's cell, as its first screen in a terminal."""

from dataclasses import replace
from html import escape
from io import StringIO
from shutil import get_terminal_size

from attncli.report import Report
from attncli.views import Display, load_view

MAX_CELL_BYTES = 2_500_000
"""A Jupyter server drops what a kernel sends beyond 1 MB per second, averaged over 3 seconds."""

STYLE = (
    "box-sizing: border-box; width: 100%; height: 720px; max-height: 90vh; resize: vertical; "
    "border: 1px solid #8886; border-radius: 5px"
)
"""A frame does not know how long its page is: what is longer scrolls, and its corner makes it larger."""


class NotebookReport(Report):
    """A Report as the functions of `attncli` return it: the same fields, and a way to look at them."""

    @classmethod
    def of(cls, report: Report) -> "NotebookReport":
        """The same report."""
        return cls(**vars(report))

    def to_html(self) -> str:
        """The page that `-o page.html` writes: self-contained, it opens without a network."""
        return _written("html", self, Display())

    def __repr__(self) -> str:
        """The first screen, as wide as the terminal, without colour."""
        return _written("table", self, Display(width=get_terminal_size().columns)).rstrip("\n")

    def _repr_html_(self) -> str:
        """The page in a frame of its own: nothing in it reaches the notebook, nor the notebook it."""
        cell = _frame(self, self.to_html())
        if len(cell) <= MAX_CELL_BYTES:
            return cell
        advice = (
            f"The maps are left out here: with them this cell has {len(cell) / 1e6:.1f} MB, "
            "too much for a Jupyter server. to_html() gives the whole page, to be written to a file."
        )
        small = replace(self, tensors={}, notes=(*self.notes, advice))
        return _frame(small, small.to_html())


def _written(view: str, report: Report, display: Display) -> str:
    stream = StringIO()
    load_view(view)([report], stream, display)
    return stream.getvalue()


def _frame(report: Report, page: str) -> str:
    """Of all that a page may do it is allowed its scripts: it has no origin, cookies, storage or popups."""
    return (
        f'<iframe title="attn {escape(report.experiment)}" sandbox="allow-scripts" style="{STYLE}" '
        f'srcdoc="{escape(page)}"></iframe>'
    )
