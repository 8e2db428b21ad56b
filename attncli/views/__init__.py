"""Views write Reports to a stream and compute nothing."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from logging import ERROR, getLogger
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from attncli.core.runtime import BrokenPlugin, Plugin, added, imported, load_place
from attncli.errors import RunError

if TYPE_CHECKING:
    from attncli.report import Report


class View(NamedTuple):
    """The module of a view in this folder, and what the view is like.

    `module` has `write(reports, stream, display)`, or the function after a colon, which writes reports as
    they come. `extra` is the extra of ours that it needs, and the package that this brings. A view that
    `draws` needs what every head of a model looks at; a `whole` one holds every part of a report, whatever
    --show says. One that `has_steps` writes an explanation, or a step of it, for people to read. A view of
    `one_table` holds the report's main table, or the one that --show names; else NoSuchTable. One that
    `spells_tokens` leaves them as the model's vocabulary has them; one that `has_title` takes another from
    --title.
    """

    module: str
    suffixes: tuple[str, ...] = ()
    extra: tuple[str, str] | None = None
    one_report: bool = False
    writes_bytes: bool = False
    draws: bool = False
    whole: bool = False
    spells_tokens: bool = False
    one_table: bool = False
    has_steps: bool = False
    has_title: bool = False
    for_other_programs: bool = False
    plugin: Plugin | None = None

    @property
    def is_for_screens(self) -> bool:
        """Whether it is written in the characters that a terminal has; what others read is UTF-8."""
        return self.module in ("tables", "heatmap")


PLOT = ("plot", "matplotlib")
PARQUET = ("parquet", "pyarrow")
VIEWS = {
    "table": View("tables", (".txt",), has_steps=True),
    "json": View("data:write_json", (".json",), whole=True, spells_tokens=True),
    "jsonl": View("data:write_json_lines", (".jsonl", ".ndjson"), whole=True, spells_tokens=True),
    "csv": View("data:write_csv", (".csv",), one_table=True),
    "parquet": View("data:write_parquet", (".parquet",), PARQUET, writes_bytes=True, one_table=True),
    "npz": View("data:write_npz", (".npz",), None, True, True, whole=True, spells_tokens=True),
    "safetensors": View(
        "data:write_safetensors", (".safetensors",), None, True, True, whole=True, spells_tokens=True
    ),
    "md": View("tables:write_markdown", (".md", ".markdown"), has_steps=True),
    "heatmap": View("heatmap", draws=True, has_title=True),
    "html": View("page", (".html", ".htm"), draws=True, whole=True, has_title=True),
    "png": View("pictures:write_png", (".png",), PLOT, True, True, True, has_title=True),
    "svg": View("pictures:write_svg", (".svg",), PLOT, True, False, True, has_title=True),
    "pdf": View("pictures:write_pdf", (".pdf",), PLOT, True, True, True, has_title=True),
    "srt": View("word_screens:write_srt", (".srt",), for_other_programs=True),
    "vtt": View("word_screens:write_vtt", (".vtt",), for_other_programs=True),
    "dot": View("graphs:write_dot", (".dot", ".gv"), draws=True, has_title=True, for_other_programs=True),
}
VIEWS |= {
    name: View(plugin.place, (f".{name}",), plugin=plugin)
    for name, plugin in added("views", {*VIEWS}).items()
}
SUFFIXES = {suffix: name for name, view in VIEWS.items() for suffix in view.suffixes}

# How wide text is in a pipe, where tables are as wide as they need.
TEXT_WIDTH = 80
# What a terminal can show, from nothing to 24 bits per colour.
COLOR_DEPTHS = ("none", "16", "256", "truecolor")
# What can be shown alone; views/matrices.py says what belongs to each.
PARTS = ("weights", "scores", "rows", "output", "statistics", "all")
# How the colours of a heatmap spread over its numbers.
SCALES = ("linear", "log", "row")


@dataclass(frozen=True)
class Display:
    """How to show reports: columns (None: as wide as needed), colour, decimals, one report or several.

    A first screen takes at most `height` lines (None: as many as it usually has).

    `scale_colors` spreads a heatmap's colours: linear, log, or row (each row by itself); None as suits the
    numbers. The first `skip_first_keys` keys are excluded from that and left blank. Vectors show at most
    `most_dims` numbers (None: as many as fit). `show` are the parts that the user asked for; without any, a
    view that has a first screen shows that, with `screen_precision` decimals. A picture of one map takes at
    most `map_lines` lines. `title` replaces a picture's title. `step` is the only step of an explanation
    to show, from 1. `is_saved`: the report comes from a file, which the next commands are about.
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
    step: int | None = None
    is_saved: bool = False

    @property
    def has_color(self) -> bool:
        """Whether colours are used."""
        return self.colors != "none"


class NothingToDraw(LookupError):
    """A report has neither a matrix nor a curve."""


class NoSuchTable(LookupError):
    """A report does not have the table that was asked for."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.names = name, names


# To a stream of text, or of bytes where the view writes these.
Write = Callable[["Iterable[Report]", IO[Any], Display], None]


@contextmanager
def _any_backend() -> Iterator[None]:
    """Ignore MPLBACKEND while matplotlib is imported: backends are for windows, and files do not need one."""
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    try:
        yield
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
            with suppress(ValueError):  # a backend that matplotlib does not know
                sys.modules["matplotlib"].rcParams["backend"] = backend


def load_view(name: str) -> Write:
    """The function of a view, imported when it is used; it gets readable tokens unless it `spells_tokens`."""
    module, _, function = VIEWS[name].module.partition(":")
    if VIEWS[name].extra == PLOT:
        # Before the import: matplotlib logs about its caches and fonts.
        getLogger("matplotlib").setLevel(ERROR)
    write: Write
    if (plugin := VIEWS[name].plugin) is None:
        with _any_backend() if VIEWS[name].extra == PLOT else nullcontext():
            write = load_place(f"{__name__}.{module}:{function or 'write'}")
    else:
        write = _of_plugin(plugin)
    if VIEWS[name].spells_tokens:
        return write

    def write_readable(reports: "Iterable[Report]", stream: IO[Any], display: Display) -> None:
        from attncli.views.texts import readable

        write(map(readable, reports), stream, display)

    return write_readable


def _of_plugin(plugin: Plugin) -> Write:
    """The function that a plugin names. Raises RunError where it cannot be imported."""
    try:
        write: Write = imported(plugin)
    except BrokenPlugin as error:
        raise RunError(str(error)) from None
    return write
