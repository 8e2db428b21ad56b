"""Where reports go: standard output or a file that appears whole, in a view, with or without colour."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from attncli.errors import RunError, UserError, nearest
from attncli.views import (
    BINARY,
    COLOR_DEPTHS,
    EXTRAS,
    ONE_REPORT,
    SCALES,
    SUFFIXES,
    VIEWS,
    Display,
    load_view,
    view_of_suffix,
)

if TYPE_CHECKING:
    from attncli.report import Report

MAX_PRECISION = 15
MAX_DIGITS = 9
COLORS = ("auto", "always", "never", *COLOR_DEPTHS[1:])

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="How to write reports. [default: by the suffix of -o, else table]",
        metavar="|".join(VIEWS),
        autocompletion=lambda: list(VIEWS),
    ),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="Write to a file, whole or not at all.", metavar="FILE")
]
Precision = Annotated[str, typer.Option("--precision", help="Decimals in tables.", metavar="INTEGER")]
Color = Annotated[
    str,
    typer.Option(
        "--color",
        help="Colour in tables and heatmaps.",
        metavar="|".join(COLORS),
        autocompletion=lambda: list(COLORS),
    ),
]
ScaleColors = Annotated[
    str,
    typer.Option(
        "--scale-colors",
        help="How colours spread over numbers; row: over each row by itself.",
        metavar="|".join(SCALES),
        autocompletion=lambda: list(SCALES),
    ),
]
SkipSink = Annotated[
    str | None,
    typer.Option("--skip-sink", help="First keys that take no colours. [default: 0]", metavar="INTEGER"),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]


class ClosedPipe(Exception):
    """The reader of standard output has gone: nothing is left to do."""


class Destination:
    """A checked choice of view, file and display; reports are written to it once."""

    def __init__(
        self,
        view: str | None,
        output: str | None,
        precision: str,
        color: str,
        *,
        several: bool,
        scale_colors: str = "linear",
        skip_sink: str | None = None,
    ) -> None:
        refuse_unknown("--color", color, COLORS)
        refuse_unknown("--scale-colors", scale_colors, SCALES)
        if not precision.isdecimal() or len(precision) > MAX_DIGITS or int(precision) > MAX_PRECISION:
            raise UserError(
                f"--precision: must be a whole number from 0 to {MAX_PRECISION} (got {precision:.60})"
            )
        if skip_sink is not None and not skip_sink.isdecimal():
            raise UserError(f"--skip-sink: must be a whole number (got {skip_sink:.60})")
        if skip_sink is not None and len(skip_sink) > MAX_DIGITS:
            raise UserError(f"--skip-sink: must have at most {MAX_DIGITS} digits (got {skip_sink:.60})")
        if output == "":
            raise UserError("-o: must be the name of a file (got an empty text)")
        self.path = Path(output) if output is not None else None
        self.view = self._chosen_view(view)
        self.color = color
        self.display = Display(
            precision=int(precision),
            several=several,
            scale_colors=scale_colors,
            skip_sink=int(skip_sink or 0),
        )
        if self.path is not None:
            self.refuse_what_is_no_file(self.path)
        self._refuse_bytes_to_a_terminal()
        self._refuse_a_missing_package()

    def _chosen_view(self, view: str | None) -> str:
        if view is not None:
            refuse_unknown("--format", view, VIEWS)
            return view
        if self.path is None:
            return "table"
        by_suffix = view_of_suffix(self.path)
        if by_suffix is None:
            known = ", ".join(SUFFIXES)
            raise UserError(f"-o {self.path}: the suffix must be one of {known}, or give --format")
        return by_suffix

    @staticmethod
    def refuse_what_is_no_file(path: Path) -> None:
        """UserError for a name under which no file can be written."""
        try:
            if path.is_dir():
                raise UserError(f"-o {path}: is a directory")
            if not path.parent.is_dir():
                raise UserError(f"-o {path}: no such directory: {path.parent}")
            path.resolve()
        except (OSError, RuntimeError) as error:  # a name too long, a loop of links
            raise UserError(f"-o {path}: cannot be written: {error}") from None

    def write(self, reports: "Iterable[Report]", *, several: bool | None = None) -> None:
        """Write the reports as they come; RunError where the file cannot take them.

        `several` says what was not known before they were read: whether they are one report or a list.
        """
        write = load_view(self.view)
        if several is not None:
            self.display = replace(self.display, several=several)
        if self.view in ONE_REPORT:
            reports = _only_one(reports, self.view)
        is_binary = self.view in BINARY
        if self.path is None:
            try:
                write(reports, sys.stdout.buffer if is_binary else sys.stdout, self._display(_is_terminal()))
                sys.stdout.flush()
            except BrokenPipeError:
                raise ClosedPipe from None
            return
        with _whole_file(self.path, is_binary) as stream:
            write(reports, stream, self._display(None))

    def _refuse_bytes_to_a_terminal(self) -> None:
        if self.view in BINARY and self.path is None and _is_terminal():
            raise UserError(
                f"--format {self.view}: is no text for a terminal: give -o FILE.{self.view}, or a pipe"
            )

    def _refuse_a_missing_package(self) -> None:
        extra, package = EXTRAS.get(self.view, (None, None))
        if package is not None and find_spec(package) is None:
            raise UserError(f'--format {self.view}: needs: pip install "attncli[{extra}]"')

    def _display(self, is_terminal: bool | None) -> Display:
        """For standard output, or for a file (None): that has colour only where the flag says so."""
        colors = color_depth(self.color, is_terminal)
        return replace(self.display, width=_width(bool(is_terminal)), colors=colors)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _only_one(reports: "Iterable[Report]", view: str) -> "Iterator[Report]":
    """The only report there is; UserError, before anything is drawn, where there are more or none."""
    first, second = islice(chain(reports, (None, None)), 2)
    if first is None:
        raise RunError(f"--format {view}: there is no report to draw")
    if second is not None:
        raise UserError(
            f"--format {view}: a picture shows one report, and there are several: save them as .jsonl, "
            "and draw one with attn show FILE --report NUMBER"
        )
    yield first


def refuse_unknown(flag: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UserError(f"{flag}: must be one of {', '.join(known)} (got {value}){nearest(value, known)}")


@contextmanager
def _whole_file(path: Path, is_binary: bool = False) -> Iterator[IO[Any]]:
    """A stream of text, or of bytes, that becomes the file when all went well; before that it is untouched.

    What is no regular file (a device, a pipe) is written directly: it cannot be replaced.
    """
    target = path.resolve()
    is_special = target.exists() and not target.is_file()
    written = target if is_special else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with written.open("wb") if is_binary else written.open("w", encoding="utf-8", newline="\n") as stream:
            if target.exists() and not is_special:
                written.chmod(target.stat().st_mode)
            yield stream
        if not is_special:
            written.replace(target)
    except OSError as error:
        raise RunError(f"-o {path}: cannot be written: {error.strerror}") from None
    finally:
        if not is_special:
            written.unlink(missing_ok=True)


def write_bytes(path: Path | None, write: Callable[[IO[bytes]], None]) -> None:
    """What is no report: to a file that appears whole, or to standard output."""
    if path is not None:
        with _whole_file(path, is_binary=True) as stream:
            write(stream)
        return
    try:
        write(sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ClosedPipe from None


def _width(is_terminal: bool) -> int | None:
    """The columns to fill: COLUMNS, else the terminal's, else as many as needed."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80 if is_terminal else None


def color_depth(choice: str, is_terminal: bool | None) -> str:
    """How many colours: as --color says, else what the environment and the terminal tell."""
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
