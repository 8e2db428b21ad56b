"""Views write Reports to a stream and compute nothing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncli.report import Report

# The module of each view; its function write(reports, stream, display) writes them as they come.
VIEWS = {
    "table": "attncli.views.tables.table",
    "json": "attncli.views.json",
    "jsonl": "attncli.views.jsonl",
    "csv": "attncli.views.csv",
    "md": "attncli.views.markdown",
    "heatmap": "attncli.views.terminal.heatmap",
    "html": "attncli.views.page.html",
    "png": "attncli.views.pictures.png",
    "svg": "attncli.views.pictures.svg",
}

SUFFIXES = {
    ".txt": "table",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".png": "png",
    ".svg": "svg",
}

# Of these views: the extra of ours that they need, and the package that it brings.
EXTRAS = {"png": ("plot", "matplotlib"), "svg": ("plot", "matplotlib")}
# Those that write bytes, and those that show one report.
BINARY = frozenset({"png"})
ONE_REPORT = frozenset({"png", "svg"})

# What a terminal can show, from nothing to 24 bits a colour.
COLOR_DEPTHS = ("none", "16", "256", "truecolor")
# How the colours of a heatmap spread over its numbers.
SCALES = ("linear", "log", "row")

# The views that draw: of a model they want to see what every head looks at.
PICTURES = frozenset({"heatmap", "html", "png", "svg"})


@dataclass(frozen=True)
class Display:
    """How to show reports: columns (None: as wide as needed), colour, decimals, one report or several.

    `scale_colors` spreads a heatmap's colours: linear, log, or row (each row by itself). The first
    `skip_sink` keys take no part in that and are left blank.
    """

    width: int | None = None
    colors: str = "none"
    precision: int = 4
    several: bool = False
    scale_colors: str = "linear"
    skip_sink: int = 0

    @property
    def has_color(self) -> bool:
        """Whether there is any colour."""
        return self.colors != "none"


# To a stream of text, or of bytes where the view is in BINARY.
View = Callable[["Iterable[Report]", IO[Any], Display], None]


def load_view(name: str) -> View:
    """The function of a view, imported when it is used."""
    view: View = import_module(VIEWS[name]).write
    return view


def view_of_suffix(path: PurePath) -> str | None:
    """The view that a file name asks for by its suffix, if any does."""
    return SUFFIXES.get(path.suffix.lower())
