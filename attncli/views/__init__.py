"""Views write reports to a stream; they compute nothing."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from logging import ERROR, getLogger
from typing import IO, TYPE_CHECKING, Any

from attncli.feature import View, load_place
from attncli.index import installed_features

if TYPE_CHECKING:
    from attncli.records.report import Report


PLOT = ("plot", "matplotlib")
PARQUET = ("parquet", "pyarrow")
CAPTION = f"{__name__}.pictures:caption"
VIEWS = {
    "table": View("tables:write", (".txt",), has_steps=True, for_terminals=True),
    "json": View("data:write_json", (".json",), whole=True, spells_tokens=True),
    "jsonl": View("data:write_json_lines", (".jsonl", ".ndjson"), whole=True, spells_tokens=True),
    "csv": View("data:write_csv", (".csv",), one_table=True),
    "parquet": View("data:write_parquet", (".parquet",), PARQUET, writes_bytes=True, one_table=True),
    "npz": View("data:write_npz", (".npz",), None, True, True, whole=True, spells_tokens=True),
    "safetensors": View(
        "data:write_safetensors", (".safetensors",), None, True, True, whole=True, spells_tokens=True
    ),
    "md": View("tables:write_markdown", (".md", ".markdown"), has_steps=True),
    "heatmap": View("heatmap:write", draws=True, has_title=True, for_terminals=True),
    "html": View("page:write", (".html", ".htm"), draws=True, whole=True, has_title=True),
    "png": View("pictures:write_png", (".png",), PLOT, True, True, True, has_title=True, caption=CAPTION),
    "svg": View("pictures:write_svg", (".svg",), PLOT, True, False, True, has_title=True, caption=CAPTION),
    "pdf": View("pictures:write_pdf", (".pdf",), PLOT, True, True, True, has_title=True, caption=CAPTION),
}
VIEWS = {name: view._replace(write=f"{__name__}.{view.write}") for name, view in VIEWS.items()}
for feature in installed_features().values():
    VIEWS |= {name: view for name, view in feature.views.items() if name not in VIEWS}
SUFFIXES: dict[str, str] = {}
"""The view of each suffix of a file; a built-in view keeps its suffixes."""
for name, view in VIEWS.items():
    for suffix in view.suffixes:
        SUFFIXES.setdefault(suffix, name)

# The width of text in a pipe, where tables are as wide as they need to be.
TEXT_WIDTH = 80
# The minimum width that tables and pictures are made for; a narrower terminal wraps them.
LEAST_WIDTH = 60
# What a terminal can show, from nothing to 24 bits per colour.
COLOR_DEPTHS = ("none", "16", "256", "truecolor")
# The parts that can be shown alone; views/matrices.py says what belongs to each.
PARTS = ("weights", "scores", "rows", "output", "statistics", "all")
FIGURE_WIDTHS = ("single", "double")
# How the colours of a heatmap are distributed over its numbers.
SCALES = ("linear", "log", "row")


@dataclass(frozen=True)
class Display:
    """Options of views: columns (None: as wide as needed), colour, decimals, one report or several.

    A first screen has at most `height` lines (None: its usual number). `scale_colors` is the colour scale of
    a heatmap: linear, log, or row (each row separately); None chooses one that suits the numbers. The first
    `skip_first_keys` keys are excluded from the colour scale and left blank. Vectors show at most `most_dims`
    numbers (None: as many as fit). `show` holds the requested parts; if it is empty, a view with first
    screens shows one, with `screen_precision` decimals. The picture of a single map has at most `map_lines`
    lines. `title` replaces a picture's title. `figure_width` is single or double: one column of a paper, or
    both (None: the narrower that is legible). `step` is the only step of an explanation to show, from 1.
    `is_saved`: the report comes from a file, to which the next commands apply.
    """

    width: int | None = None
    height: int | None = None
    colors: str = "none"
    precision: int = 4
    screen_precision: int = 2
    several: bool = False
    scale_colors: str | None = None
    skip_first_keys: int = 0
    most_dims: int | None = None
    show: tuple[str, ...] = ()
    map_lines: int = 40
    title: str | None = None
    figure_width: str | None = None
    step: int | None = None
    is_saved: bool = False

    @property
    def columns(self) -> int:
        """The width of the display or, in a pipe, the width of text."""
        return self.width or TEXT_WIDTH

    @property
    def has_color(self) -> bool:
        """True if colours are used."""
        return self.colors != "none"

    def wide_enough(self) -> "Display":
        """Return the display, at least LEAST_WIDTH columns wide."""
        return self if self.width is None else replace(self, width=max(self.width, LEAST_WIDTH))


class NothingToDraw(LookupError):
    """A report has neither a matrix nor a curve."""


class NoSuchTable(LookupError):
    """A report does not have the requested table."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.names = name, names


# Accepts a text stream, or a byte stream if the view writes bytes.
Write = Callable[["Iterable[Report]", IO[Any], Display], None]


@contextmanager
def _any_backend() -> Iterator[None]:
    """Ignore MPLBACKEND while matplotlib is imported, because writing files needs no window backend."""
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
            with suppress(ValueError):  # a backend that matplotlib does not know
                sys.modules["matplotlib"].rcParams["backend"] = backend


def load_view(name: str) -> Write:
    """Import and return a view's function, which receives readable tokens unless it `spells_tokens`."""
    view = VIEWS[name]
    if view.extra == PLOT:
        # Before the import, because matplotlib logs messages about its caches and fonts.
        getLogger("matplotlib").setLevel(ERROR)
    with _any_backend() if view.extra == PLOT else nullcontext():
        write: Write = load_place(view.write)
    if view.spells_tokens:
        return write

    def write_readable(reports: "Iterable[Report]", stream: IO[Any], display: Display) -> None:
        from attncli.views.texts import readable

        write(map(readable, reports), stream, display)

    return write_readable


def load_caption(name: str) -> Callable[["Report", Display], str]:
    """Import and return the function that makes the caption of a view's figures, with readable tokens."""
    caption: Callable[[Report, Display], str] = load_place(VIEWS[name].caption)

    def readable_caption(report: "Report", display: Display) -> str:
        from attncli.views.texts import readable

        return caption(readable(report), display)

    return readable_caption
