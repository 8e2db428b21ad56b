"""Where reports go: standard output or a file that appears whole, in a view, with or without colour."""

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from attncli.errors import RunError, UserError, nearest
from attncli.views import SUFFIXES, VIEWS, Display, load_view, view_of_suffix

if TYPE_CHECKING:
    from attncli.report import Report

MAX_PRECISION = 15
COLORS = ("auto", "always", "never")

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
        "--color", help="Colour in tables.", metavar="|".join(COLORS), autocompletion=lambda: list(COLORS)
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]


class ClosedPipe(Exception):
    """The reader of standard output has gone: nothing is left to do."""


class Destination:
    """A checked choice of view, file and display; reports are written to it once."""

    def __init__(
        self, view: str | None, output: str | None, precision: str, color: str, *, several: bool
    ) -> None:
        if color not in COLORS:
            raise UserError(
                f"--color: must be one of {', '.join(COLORS)} (got {color}){nearest(color, COLORS)}"
            )
        if not precision.isdecimal() or int(precision) > MAX_PRECISION:
            raise UserError(
                f"--precision: must be a whole number from 0 to {MAX_PRECISION} (got {precision})"
            )
        if output == "":
            raise UserError("-o: must be the name of a file (got an empty text)")
        self.path = Path(output) if output is not None else None
        self.view = self._chosen_view(view)
        self.precision, self.color, self.several = int(precision), color, several
        if self.path is not None:
            refuse_what_is_no_file(self.path)

    def _chosen_view(self, view: str | None) -> str:
        if view is not None:
            if view not in VIEWS:
                raise UserError(
                    f"--format: must be one of {', '.join(VIEWS)} (got {view}){nearest(view, VIEWS)}"
                )
            return view
        if self.path is None:
            return "table"
        by_suffix = view_of_suffix(self.path)
        if by_suffix is None:
            known = ", ".join(SUFFIXES)
            raise UserError(f"-o {self.path}: the suffix must be one of {known}, or give --format")
        return by_suffix

    def write(self, reports: "Iterable[Report]") -> None:
        """Write the reports as they come; RunError where the file cannot take them."""
        write = load_view(self.view)
        if self.path is None:
            stream = sys.stdout
            try:
                write(reports, stream, self._display(stream.isatty()))
                stream.flush()
            except BrokenPipeError:
                raise ClosedPipe from None
            return
        with whole_file(self.path) as file:
            stream = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            try:
                write(reports, stream, self._display(None))
            finally:
                stream.detach()

    def _display(self, is_terminal: bool | None) -> Display:
        """For standard output, or for a file (None): that has colour only where the flag says so."""
        color = self.color == "always" if is_terminal is None else _wants_color(self.color, is_terminal)
        return Display(
            width=_width(bool(is_terminal)),
            color=color,
            precision=self.precision,
            several=self.several,
        )


def refuse_what_is_no_file(path: Path) -> None:
    """UserError where a file of that name cannot be written."""
    try:
        if path.is_dir():
            raise UserError(f"-o {path}: is a directory")
        if not path.parent.is_dir():
            raise UserError(f"-o {path}: no such directory: {path.parent}")
        path.resolve()
    except (OSError, RuntimeError) as error:  # a name too long, a loop of links
        raise UserError(f"-o {path}: cannot be written: {error}") from None


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A stream whose bytes become the file when all went well; before that the file is untouched.

    What is no regular file (a device, a pipe) is written directly: it cannot be replaced.
    """
    target = path.resolve()
    is_special = target.exists() and not target.is_file()
    written = target if is_special else target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with written.open("wb") as stream:
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


def _width(is_terminal: bool) -> int | None:
    """The columns to fill: COLUMNS, else the terminal's, else as many as needed."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80 if is_terminal else None


def _wants_color(choice: str, is_terminal: bool) -> bool:
    """The first that decides: --color, NO_COLOR, FORCE_COLOR, CLICOLOR_FORCE, TERM=dumb, a terminal."""
    if choice != "auto":
        return choice == "always"
    environ = os.environ
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    if environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return is_terminal and environ.get("TERM") != "dumb"
