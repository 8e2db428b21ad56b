"""The flags that commands share, and what they and the environment say of how reports are shown."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attncli.cli.command import flag, option
from attncli.errors import UserError, nearest
from attncli.views import COLOR_DEPTHS, PARTS, SCALES, VIEWS, Display

MAX_PRECISION = 15
MAX_DIGITS = 9
COLORS = ("auto", "always", "never", *COLOR_DEPTHS[1:])

# The flags of every command that shows reports; help groups them.
FORMAT = option(
    "--format",
    "How to write reports. [default: by the suffix of -o, else table]",
    choices=VIEWS,
    group="Output",
)
SHOW = option(
    "--show",
    f"Parts of the report instead of its first screen: {', '.join(PARTS)}; in csv and parquet another table.",
    "PART,...",
    kind=list[str],
    group="Output",
)
OUTPUT = option(
    "--output -o", "Write to a file, whole or not at all; - is standard output.", "FILE", group="Output"
)
OPEN = flag("--open", "Open the page or picture of -o in the browser.", group="Output")
STEP = option("--step", "Show only step N of --explain.", "INTEGER", group="Output")
PRECISION = option(
    "--precision", "Decimals in tables. [default: 4; on a first screen 2]", "INTEGER", group="Output"
)
COLOR = option("--color", "Colour in tables and heatmaps.", choices=COLORS, default="auto", group="Output")
SCALE_COLORS = option(
    "--scale-colors",
    "How colours spread over numbers; row: over each row by itself. [default: linear; of blocks log]",
    choices=SCALES,
    group="Output",
)
TITLE = option("--title", "The title of a picture, page or heatmap.", "TEXT", group="Output")
SKIP_SINK = option(
    "--skip-sink", "Exclude the first N keys from the colour scale. [default: 0]", "INTEGER", group="Output"
)
DEBUG_HELP = "Show a traceback with an error."
# Not passed to commands: main looks for it itself.
DEBUG = option("--debug", DEBUG_HELP, kind=bool, default=False, expose_value=False)

FRESH = flag("--fresh", "Start the store over instead of resuming.")
WORKERS = option(
    "--workers",
    "Processes to compute in (default: one per core where the batch is worth their start).",
    "INTEGER",
    kind=int,
    min=1,
)
SCHEDULER = option("--scheduler", "Compute on a Dask cluster: tcp://host:port.", "ADDRESS")

COLOR_FLAGS = (COLOR, SCALE_COLORS, SKIP_SINK)
OUTPUT_FLAGS = (FORMAT, OUTPUT, OPEN, TITLE, SHOW, STEP, PRECISION, *COLOR_FLAGS)


def refuse_unknown(flag: str, value: str, known: Collection[str]) -> None:
    """UserError for a value that is not one of the known ones."""
    if value not in known:
        raise UserError(f"{flag}: must be one of {', '.join(known)} (got {value}){nearest(value, known)}")


def store_errors(store: Path | None, flags: Mapping[str, Any]) -> Iterator[str]:
    """The errors of flags that need a store."""
    given = [name for name, value in flags.items() if value not in (None, False)]
    for name in given if store is None else ():
        yield f"--{name}: needs a store: -o FILE.db"
    if {"workers", "scheduler"} <= {*given}:
        yield "--workers: cannot be combined with --scheduler, which has its own"


def checked_display(
    color: str,
    scale_colors: str | None,
    skip_sink: str | None,
    precision: str | None = None,
    show: Sequence[str] = (),
    *,
    several: bool = False,
) -> Display:
    """The display that the flags ask for; UserError for an invalid value."""
    refuse_unknown("--color", color, COLORS)
    if scale_colors is not None:
        refuse_unknown("--scale-colors", scale_colors, SCALES)
    parts = [part.strip() for text in show for part in text.split(",")]
    if precision is not None and (
        not precision.isdecimal() or len(precision) > MAX_DIGITS or int(precision) > MAX_PRECISION
    ):
        raise UserError(
            f"--precision: must be a whole number from 0 to {MAX_PRECISION} (got {precision:.60})"
        )
    if skip_sink is not None and not skip_sink.isdecimal():
        raise UserError(f"--skip-sink: must be a whole number (got {skip_sink:.60})")
    if skip_sink is not None and len(skip_sink) > MAX_DIGITS:
        raise UserError(f"--skip-sink: must have at most {MAX_DIGITS} digits (got {skip_sink:.60})")
    display = Display(
        several=several, scale_colors=scale_colors, skip_sink=int(skip_sink or 0), show=tuple(parts)
    )
    if precision is None:
        return display
    return replace(display, precision=int(precision), screen_precision=int(precision))


def width(is_terminal: bool) -> int | None:
    """The columns to fill: COLUMNS, else the terminal's, else as many as needed."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80 if is_terminal else None


def color_depth(choice: str, is_terminal: bool | None) -> str:
    """How many colours: as --color says, else as the environment and the terminal allow."""
    if choice in COLOR_DEPTHS:
        return choice
    if choice == "never" or (choice == "auto" and not _wants_color(is_terminal)):
        return "none"
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    term = os.environ.get("TERM", "")
    return "truecolor" if term.endswith("-direct") else "256" if "256" in term else "16"


def _wants_color(is_terminal: bool | None) -> bool:
    """The first that decides: a file, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM=dumb, a terminal."""
    environ = os.environ
    if is_terminal is None or environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
