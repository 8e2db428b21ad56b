"""Views write Reports to a stream and compute nothing."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from attncli.report import Report

# The module of each view; its function write(reports, stream, display) writes them as they come.
VIEWS = {
    "table": "attncli.views.table",
    "json": "attncli.views.json",
    "jsonl": "attncli.views.jsonl",
    "csv": "attncli.views.csv",
}

SUFFIXES = {".txt": "table", ".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


@dataclass(frozen=True)
class Display:
    """How to show reports: columns (None: as wide as needed), colour, decimals, one report or several."""

    width: int | None = None
    color: bool = False
    precision: int = 4
    several: bool = False


View = Callable[["Iterable[Report]", TextIO, Display], None]


def load_view(name: str) -> View:
    """The function of a view, imported when it is used."""
    view: View = import_module(VIEWS[name]).write
    return view


def view_of_suffix(path: PurePath) -> str | None:
    """The view that a file name asks for by its suffix, if any does."""
    return SUFFIXES.get(path.suffix.lower())
