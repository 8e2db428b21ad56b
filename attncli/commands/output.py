"""Output of reports: to standard output, to a file that is replaced only on success, or page by page."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from errno import EINVAL, ENOLCK, EOPNOTSUPP
from importlib.util import find_spec
from io import StringIO, TextIOWrapper
from itertools import chain, count, islice
from pathlib import Path
from stat import S_ISREG
from threading import Event, Lock, Thread
from typing import IO, TYPE_CHECKING, Any, TypeVar

from attncli.commands.command import (
    CLEAR,
    can_walk,
    checked_display,
    color_depth,
    height,
    refuse_unknown,
    width,
)
from attncli.commands.forecast import Forecast
from attncli.core.progress import Stage
from attncli.errors import ClosedPipe, RunError, UserError, WriteError, readable_bytes
from attncli.feature import View
from attncli.settings import SPECS
from attncli.system.files import STORE_SUFFIXES
from attncli.system.plain_text import plain_text, whole_number
from attncli.system.platforms import is_alive, lock_file, terminal_size
from attncli.views import (
    FIGURE_WIDTHS,
    PARTS,
    SUFFIXES,
    VIEWS,
    Display,
    NoSuchTable,
    NothingToDraw,
    Write,
    load_caption,
    load_view,
)

if TYPE_CHECKING:
    from webbrowser import BaseBrowser

    from attncli.records.report import Report


DELAY_SECONDS = 1.0
UPDATE_SECONDS = 0.1
COUNTED_SECONDS = 2.0
LONG_SECONDS = 60.0
"""The least remaining time for which faster ways are suggested."""


class ProgressLine:
    """A progress line on standard error, overwritten and finally erased, which only a terminal shows.

    `begin` writes the line immediately; other progress appears after a second of work. Called with the
    fraction done, or with each stage of the work, the line shows that share and, once the forecast is steady,
    the time left.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()
        self.begun = time.monotonic()
        self._shown_at = 0.0
        self._first: tuple[float, float] | None = None
        self._first_layer: tuple[float, int] | None = None
        self._runs = 0
        self._forecast: Forecast | None = None
        self._faster_ways = ""
        self._is_in_text = False
        self._waiting: Event | None = None
        self._lock = Lock()

    @property
    def seconds(self) -> float:
        """The number of seconds since the work started."""
        return time.monotonic() - self.begun

    def __call__(self, share: float, /) -> None:
        if share >= 1:
            self._forecast = None
            self.clear()
        else:
            self.stage(Stage("", share, 1.0))

    def stage(self, stage: Stage, /) -> None:
        """Begin a stage of the work; from now on, a single forecast covers all stages."""
        if self._forecast is None:
            self._forecast = Forecast()
        self._forecast.begin(stage)
        self._show_forecast(self._forecast)

    def _show_forecast(self, forecast: Forecast) -> None:
        steady = forecast.steady_seconds() if self._faster_ways else None
        if steady is not None and steady[1] > LONG_SECONDS:
            self.tell(f"about {math.ceil(steady[0] / 60)} min in all: {self._faster_ways}")
            self._faster_ways = ""
        left = forecast.seconds_left()
        words = "" if forecast.stage is None else forecast.stage.words
        parts = [f"{forecast.share:4.0%}", *([words] if words else [])]
        parts += [] if left is None else [f"about {readable_seconds(left)} left"]
        self.show(lambda: ", ".join(parts))

    def if_long(self, faster_ways: str, /) -> None:
        """Set a hint about faster ways, which is printed once if a steady forecast predicts a long time."""
        self._faster_ways = faster_ways

    def begin_layer(self, number: int, count: int, /) -> None:
        """Begin a layer of a model.

        Without stages, show the layer and the time left in the first run, because the number of later runs is
        unknown.
        """
        if self._forecast is not None:
            self._forecast.begin_layer(number, count)
            self._show_forecast(self._forecast)
            return
        now = time.monotonic()
        if number == 1 or self._first_layer is None:
            self._first_layer = now, number
            self._runs += 1
        began, first = self._first_layer
        left = (now - began) * (count + 1 - number) / max(1, number - first)
        has_estimate = number > first and self._runs == 1 and now - began > DELAY_SECONDS
        about = f", about {readable_seconds(left)} left" if has_estimate else ""
        self.show(lambda: f"layer {number} of {count}{about}")

    def rate(self, done: int) -> float | None:
        """Return the rate per second since the first results, or None if it is not yet known."""
        now = time.monotonic()
        if self._first is None and done:
            self._first = now, done
        if self._first is None or now - self._first[0] < DELAY_SECONDS or done <= self._first[1]:
            return None
        return (done - self._first[1]) / (now - self._first[0])

    def begin(self, text: str, /) -> None:
        """Print a line before a long operation without progress; add the elapsed time after a few seconds."""
        if not self.is_terminal:
            return
        self._end_waiting()
        self._waiting = Event()
        self._put(text)
        # A duplicate, because code that loads a model may redirect standard error.
        terminal = os.dup(sys.stderr.fileno())
        Thread(target=self._count, args=(text, self._waiting, terminal), daemon=True).start()

    def _count(self, text: str, ended: Event, terminal: int) -> None:
        begun = time.monotonic()
        while not ended.wait(COUNTED_SECONDS):
            with self._lock:
                if not ended.is_set():
                    passed = readable_seconds(time.monotonic() - begun)
                    os.write(terminal, _line(f"{text}, {passed}", terminal).encode(errors="replace"))
        os.close(terminal)

    def _end_waiting(self) -> None:
        with self._lock:
            if self._waiting is not None:
                self._waiting.set()
                self._waiting = None

    def _put(self, text: str) -> None:
        self._shown_at = time.monotonic()
        print(_line(text, sys.stderr.fileno()), end="", file=sys.stderr, flush=True)

    def show(self, text: Callable[[], str]) -> None:
        """Print the text if an update is due."""
        now = time.monotonic()
        due = now - self.begun > DELAY_SECONDS and now - self._shown_at > UPDATE_SECONDS
        if self.is_terminal and due and not self._is_in_text:
            self._end_waiting()
            self._put(text())

    def clear(self) -> None:
        """Erase the line before permanent output."""
        self._end_waiting()
        if self._shown_at:
            self._shown_at = 0.0
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def write(self, text: str, /) -> None:
        """Write generated text to standard error if that is a terminal, keeping line breaks."""
        if self.is_terminal:
            self.clear()
            print("\n".join(map(plain_text, text.split("\n"))), end="", file=sys.stderr, flush=True)
            self._is_in_text = not text.endswith("\n") if text else self._is_in_text

    def tell(self, line: str, /) -> None:
        """Print a permanent line on standard error."""
        self.clear()
        print(plain_text(line), file=sys.stderr)


def _line(text: str, terminal: int) -> str:
    """Return the codes that erase the current line, followed by the text, cut to one line of the terminal."""
    columns = terminal_size(terminal).columns
    return f"{CLEAR}{plain_text(text)[: columns - 1]}"


@contextmanager
def progress_line() -> Iterator[ProgressLine]:
    """Yield a progress line that is erased at the end, even after an error."""
    line = ProgressLine()
    try:
        yield line
    finally:
        line.clear()


def first_words(models: Iterable[str | None]) -> str:
    """Return the first progress line, which appears before any slow import: `reading gpt2, 548 MB`."""
    sized = [_with_size(model) for model in dict.fromkeys(models) if model is not None]
    return f"reading {', '.join(sized)}" if sized else "starting torch"


def _with_size(model: str) -> str:
    from attncli.models.folder import model_on_disk, stored_bytes

    path = model_on_disk(model, allow_download=False)
    if path is None:
        return f"{plain_text(model)} from the hub"
    return f"{plain_text(Path(model).name)}, {readable_bytes(stored_bytes(path))}"


def counted_runs(line: ProgressLine, total: int, kept: int, done: int, failed: int) -> str:
    """Return `1,234 of 5,000 runs, 310/s, about 12 s left, 2 failed`; the rate starts at the first result."""
    now = done + failed
    parts = [f"{kept + now:,} of {total:,} runs"]
    if (rate := line.rate(now)) is not None:
        left = (total - kept - now) / rate
        parts += [f"{readable_rate(rate)}", f"about {readable_seconds(left)} left"]
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def readable_rate(rate: float) -> str:
    """Format a rate, as in `1,310/s` or `0.25/s`."""
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def readable_seconds(seconds: float) -> str:
    """Format a duration, as in `12 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def checked_step(step: str | None, view: str, display: Display) -> int | None:
    """Return the number of --step. Raises UserError if it is not a number or if the view shows no steps."""
    if step is None:
        return None
    if not VIEWS[view].has_steps:
        readable = ", ".join(name for name, row in VIEWS.items() if row.has_steps)
        raise UserError(f"--step: {view} cannot show a single step; --step works with {readable}")
    if display.show:
        raise UserError("--step: cannot be combined with --show: give one of them")
    number = whole_number(step)
    if not number:
        raise UserError(f"--step: must be the number of a step, from 1 (got {step:.60})")
    return number


def with_step(reports: "Iterable[Report]", step: int | None) -> "Iterator[Report]":
    """Yield the reports. Raises UserError for a report that lacks the requested step."""
    for report in reports:
        count = len(report.steps)
        if step is not None and not count:
            raise UserError("--step: the report has no steps: create the report with --explain")
        if step is not None and step > count:
            raise UserError(f"--step: must be from 1 to {count}, the number of steps (got {step})")
        yield report


def walk_steps(reports: "Iterable[Report]", write: Write, stream: IO[str], display: Display) -> None:
    """Show each step of an explanation as a separate page until the reader quits."""
    from attncli.commands.pager import walk

    for report in reports:
        if not report.steps:
            write([report], stream, display)
            continue

        def step_text(number: int, report: "Report" = report) -> str:
            text = StringIO()
            write([report], text, replace(display, step=number))
            return text.getvalue()

        titles = [plain_text(step.title) for step in report.steps]
        walk(map(step_text, range(1, len(titles) + 1)), titles, "step")


class Destination:
    """A validated choice of format, file and display, to which reports are written once."""

    def __init__(
        self,
        format: str | None,
        output: str | None,
        precision: str | None,
        color: str,
        scale_colors: str | None = None,
        skip_first_keys: str | None = None,
        show: Sequence[str] = (),
        title: str | None = None,
        step: str | None = None,
        figure_width: str | None = None,
        *,
        open: bool = False,
        several: bool = False,
        experiment: str | None = None,
        is_stored: bool = False,
    ) -> None:
        """Check the flags. Raises UserError for invalid ones.

        `experiment` names the command whose parts an error message lists. If the reports are stored, the
        requested parts are looked up in the reports instead.
        """
        display = checked_display(color, scale_colors, skip_first_keys, precision, show, several=several)
        self.path = checked_path(output)
        self.format = chosen_format(format, self.path, VIEWS, SUFFIXES, "table")
        self.view = VIEWS[self.format]
        if show and self.view.whole:
            partial = ", ".join(name for name, view in VIEWS.items() if not view.whole)
            raise UserError(
                f"--show: {self.format} always holds the whole report; --show works with {partial}"
            )
        if self.view.one_table and len(display.show) > 1:
            names = ", ".join(display.show)
            raise UserError(f"--show: a {self.format} file holds one table: give one name (got {names})")
        if not is_stored:
            _refuse_other_parts(display.show, experiment)
        if not self.view.one_table and not is_stored:  # otherwise, the report determines the tables
            refuse_unknown_parts(display.show, experiment)
        if title is not None and not self.view.has_title:
            titled = ", ".join(name for name, view in VIEWS.items() if view.has_title)
            raise UserError(f"--title: {self.format} has no title; --title works with {titled}")
        if figure_width is not None:
            refuse_unknown("--figure-width", figure_width, FIGURE_WIDTHS)
            if not self.view.caption:
                figures = ", ".join(name for name, view in VIEWS.items() if view.caption)
                raise UserError(
                    f"--figure-width: {self.format} has no width; --figure-width works with {figures}"
                )
        step_number = checked_step(step, self.format, display)
        self.display = replace(display, title=title, figure_width=figure_width, step=step_number)
        self.color = color
        if self.view.writes_bytes and self.path is None and sys.stdout.isatty():
            remedy = f"use -o FILE.{self.format} or a pipe"
            raise UserError(f"--format {self.format}: is binary and cannot be shown in a terminal: {remedy}")
        if self.view.extra is not None:
            extra, package = self.view.extra
            if find_spec(package) is None:
                raise UserError(f'--format {self.format}: needs: pip install "attncli[{extra}]"')
        self.browser = browser_for(self.format, self.path) if open else None

    def write(self, reports: "Iterable[Report]", *, several: bool | None = None) -> None:
        """Write the reports as they come. Raises WriteError if the file cannot be written.

        `several` overrides whether the display shows one report or a list.
        """
        write = load_view(self.format)
        if several is not None:
            self.display = replace(self.display, several=several)
        if self.view.one_report:
            reports = _only_one(reports, self.format)
        if not self.view.one_table:
            reports = _with_parts(reports, self.display)
        reports = with_step(reports, self.display.step)
        # None for a file, which has colours only if --color asks for them.
        is_terminal = sys.stdout.isatty() if self.path is None else None
        colors = color_depth(self.color, is_terminal) if self.path is not None or _has_blocks() else "none"
        columns, lines = width(bool(is_terminal)), height(bool(is_terminal))
        display = replace(self.display, width=columns, height=lines, colors=colors)
        caption = None
        if self.view.caption:
            (report,) = reports
            reports, caption = [report], self._caption_of(report, display)
        try:
            with (
                written_stream(self.path, self.view, caption) as stream,
                progress_line() as line,
            ):
                reports = with_write_progress(reports, self.path, line)
                if self._is_walked():
                    walk_steps(reports, write, stream, display)
                elif is_terminal or not self.view.for_terminals:
                    write(reports, stream, display)
                else:
                    lines_written = UnpaddedLines(stream)
                    write(reports, lines_written, display)
                    lines_written.finish()
        except NoSuchTable as error:
            refuse_unknown("--show", error.name, error.names)
        except NothingToDraw as error:
            raise UserError(f"--format {self.format}: {error}") from None
        if self.path is not None and self.browser is not None:
            is_opened = self.browser.open(self.path.resolve().as_uri())
            if not is_opened:
                raise RunError(f"--open: the browser could not be started: open {self.path} yourself")

    def _caption_of(self, report: "Report", display: Display) -> Callable[[], str] | None:
        """Return what makes the caption of a figure, or None unless a figure is written to a file."""
        if self.path is None or not self.view.caption or (self.path.exists() and not self.path.is_file()):
            return None
        return lambda: load_caption(self.format)(report, display)

    def _is_walked(self) -> bool:
        """Return True if a complete explanation is to be shown step by step in an interactive terminal."""
        display = self.display
        is_whole = display.step is None and not display.show and not display.several
        return self.format == "table" and self.path is None and is_whole and can_walk()


def _has_blocks() -> bool:
    """Return True if standard output can encode the half-blocks that show two rows of a map on each line."""
    try:
        "▀".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown_parts(names: Sequence[str], experiment: str | None = None) -> None:
    """Raise UserError for names that are neither parts of reports nor tables or tensors of a first screen.

    The error lists the names for the experiment, if that is known.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        from attncli.views.tables import shown_names, shown_names_of

        experiment_parts = [] if experiment is None else shown_names_of(experiment)
        parts = SPECS[experiment].parts if experiment is not None and experiment in SPECS else ()
        for name in unknown:
            if name not in shown_names():
                refuse_unknown("--show", name, dict.fromkeys((*(parts or PARTS), *experiment_parts, "all")))


def _refuse_other_parts(names: Sequence[str], experiment: str | None) -> None:
    """Raise UserError for parts that other reports have but the experiment's reports do not."""
    if experiment is None or experiment not in SPECS or not SPECS[experiment].parts:
        return
    parts, elsewhere = SPECS[experiment].parts, SPECS[experiment].parts_elsewhere
    for name in names:
        if name in PARTS and name not in (*parts, "all"):
            hint = f": {elsewhere[name]}" if name in elsewhere else ""
            listed = ", ".join(parts)
            raise UserError(
                f"--show: a report of {experiment} holds no {name}{hint}; it has {listed}, ..., all"
            )


def browser_for(format: str, path: Path | None) -> "BaseBrowser":
    """Return a browser for the file. Raises UserError without one or if browsers cannot open the format."""
    drawn = {name: each for name, each in VIEWS.items() if each.draws and each.suffixes}
    opened = [name for name, each in drawn.items() if not each.for_other_programs]
    if path is None or format not in opened:
        raise UserError(
            f"--open: needs -o with a {', '.join(opened[:-1])} or {opened[-1]} file, such as -o page.html"
        )
    import webbrowser

    try:
        return webbrowser.get()
    except webbrowser.Error:
        raise UserError("--open: no browser was found: set the environment variable BROWSER") from None


def _only_one(reports: "Iterable[Report]", format: str) -> "Iterator[Report]":
    """Yield the only report. Raises UserError, before writing anything, for any other number of reports."""
    first, second = islice(chain(reports, (None, None)), 2)
    verb = "draw" if VIEWS[format].draws else "write"
    if first is None:
        raise RunError(f"--format {format}: there is no report to {verb}")
    if second is not None:
        what = "picture shows" if VIEWS[format].draws else "file holds"
        raise UserError(
            f"--format {format}: a {what} one report, but there are several: save the reports as .jsonl, "
            f"then {verb} one with attn show FILE --report NUMBER"
        )
    yield first


def _with_parts(reports: "Iterable[Report]", display: Display) -> "Iterator[Report]":
    """Yield the reports. Raises UserError for a requested part missing from a single report or from all."""
    from attncli.views.matrices import listed_names, missing_parts, part_names, parts_of
    from attncli.views.tables import empty_parts

    missing: list[str] = []
    listed: dict[str, None] = {}
    valid_names: set[str] = set()
    for report in reports:
        listed |= dict.fromkeys([*parts_of(report), *listed_names(report)])
        valid_names |= {*part_names(report), *empty_parts(report)}
        names = [name for name in display.show if name not in valid_names]
        missing = missing_parts(report, names, list(listed))
        if missing and not display.several:
            break
        yield report
    if missing:
        raise UserError(*(f"--show: {sentence}" for sentence in missing))


STDOUT = (None, "-", "/dev/stdout")
"""Names of standard output for -o. The shell may have opened it as a file, which must not be replaced."""


def checked_path(output: str | None) -> Path | None:
    """Return the path of -o, or None for standard output. Raises UserError if the path cannot be written."""
    if output in STDOUT:
        return None
    path = Path(output)
    if output == "":
        raise UserError("-o: must be a file name (got an empty text)")
    try:
        if path.is_dir():
            raise UserError(f"-o {path}: is a directory")
        if not path.parent.is_dir():
            raise UserError(f"-o {path}: no such directory: {path.parent}")
        path.resolve()
    except (OSError, RuntimeError) as error:  # the name is too long, or links form a loop
        reason = error.strerror if isinstance(error, OSError) else error
        raise WriteError(f"-o {path}: cannot be written: {reason}") from None
    return path


def checked_store(path: Path) -> Path:
    """Return the path of a store. Raises UserError if the path is not a folder and cannot be written."""
    if not path.is_dir():
        checked_path(str(path))
    return path


def chosen_format(
    format: str | None, path: Path | None, known: Collection[str], suffixes: Mapping[str, str], default: str
) -> str:
    """Return the requested format, or else the format of the file's suffix, or else the default.

    Raises UserError if the suffix belongs to a different format.
    """
    suffix = path.suffix.lower() if path is not None else ""
    if format is not None:
        refuse_unknown("--format", format, known)
        if SUFFIXES.get(suffix, format) != format and format in SUFFIXES.values():
            raise UserError(f"-o {path}: {suffix} is for --format {SUFFIXES[suffix]} (got --format {format})")
        return format
    if path is None:
        return default
    if suffix in STORE_SUFFIXES:
        raise UserError(
            f"-o {path}: {suffix} is for a store of many runs: use attn batch FILE.yaml -o {path} or "
            f"attn heads --texts FILE -o {path}"
        )
    if suffix not in suffixes:
        stores = "" if suffix else "; use .db for a store of many runs"
        formats = f"the suffix must be one of {', '.join(suffixes)} unless --format is given"
        raise UserError(f"-o {path}: {formats}{stores}")
    return suffixes[suffix]


def caption_path(path: Path) -> Path:
    """Return the file beside a figure that has its caption, such as `map.pdf.caption.txt`."""
    return path.with_name(f"{path.name}.caption.txt")


@contextmanager
def written_stream(
    path: Path | None, view: View, caption: Callable[[], str] | None = None
) -> Iterator[IO[Any]]:
    """Yield a text or binary stream to standard output, or to a file that is replaced only on success.

    The caption of a figure is written beside the file, which is replaced last.
    """
    if path is not None:
        beside = caption_path(path)
        with _whole_file(path, view.writes_bytes) as stream:
            yield stream
            if caption is not None:
                with _whole_file(beside, is_binary=False) as text:
                    text.write(caption())
        if sys.stderr.isatty():
            also = "" if caption is None else f" and its caption, {plain_text(beside.name)}"
            print(f"wrote {plain_text(str(path))}{also}", file=sys.stderr)
        return
    if not view.for_terminals and isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    stream = sys.stdout.buffer if view.writes_bytes else sys.stdout
    try:
        yield stream
        stream.flush()
    except BrokenPipeError:
        raise ClosedPipe from None


class UnpaddedLines(StringIO):
    """A text stream that removes trailing spaces, which diffs would show."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream, self._begun = stream, ""

    def write(self, text: str) -> int:
        """Write the completed lines to the underlying stream."""
        *lines, self._begun = (self._begun + text).split("\n")
        self.stream.write("".join(f"{line.rstrip(' ')}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Flush the completed lines to the underlying stream."""
        self.stream.flush()

    def finish(self) -> None:
        """Write the last, incomplete line."""
        self.stream.write(self._begun.rstrip(" "))


Written = TypeVar("Written")


def with_write_progress(items: Iterable[Written], path: Path | None, line: ProgressLine) -> Iterator[Written]:
    """Yield items while the progress line shows that a file is being written.

    Making an item may show its own progress.
    """
    name = "standard output" if path is None else path.name
    is_file = path is not None or _is_stdout_a_file()
    for item in items:
        if is_file:
            line.begin(f"writing {name}")
        yield item
        line.clear()
    if is_file:
        line.begin(f"writing {name}")


def _is_stdout_a_file() -> bool:
    """Return True if a shell redirected standard output to a file, not to a pipe or terminal."""
    try:
        return S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


@contextmanager
def _whole_file(path: Path, is_binary: bool) -> Iterator[IO[Any]]:
    """Yield a stream to a temporary file that replaces the target on success.

    A device or pipe is written to directly, because it cannot be replaced.
    """
    target = path.resolve()
    # The path itself is tested, because an open pipe such as /dev/fd/63 does not resolve to a file name.
    is_special = path.exists() and not path.is_file()
    try:
        with (
            nullcontext(path) if is_special else _replacing_file(target) as written,
            written.open("wb") if is_binary else written.open("w", encoding="utf-8", newline="\n") as stream,
        ):
            yield stream
    except OSError as error:
        raise WriteError(f"-o {path}: cannot be written: {error.strerror}") from None


@contextmanager
def _replacing_file(target: Path) -> Iterator[Path]:
    """Yield a locked file in the same folder and with the same mode, which replaces the target on success.

    The lock distinguishes the file from the leftovers of killed runs.
    """
    _remove_leftovers(target)
    part, lock = _locked_part(target)
    try:
        if target.exists():
            part.chmod(target.stat().st_mode)
        yield part
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)


def _locked_part(target: Path) -> tuple[Path, int]:
    """Create a file in the target's folder; return it and the descriptor that locks it while it is open."""
    for number in count(1):
        extra = "" if number == 1 else f".{number}"  # a process on another host may have the same number
        part = target.with_name(f".{target.name}.{os.getpid()}{extra}.part")
        file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        if _has_lock(file):
            return part, file
        os.close(file)
    raise AssertionError("unreachable: count() is infinite")


def _has_lock(file: int) -> bool:
    """Lock a file. Return False if another process holds the lock or has removed the file.

    On file systems without locks, return True.
    """
    try:
        lock_file(file)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (ENOLCK, EOPNOTSUPP, EINVAL):
            raise
    return os.fstat(file).st_nlink > 0  # False if another process removed it before the lock


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of killed runs: same target and user, unlocked, and without a process."""
    part = re.compile(rf"\.{re.escape(target.name)}\.([0-9]+)(\.[0-9]+)?\.part")
    with suppress(OSError):  # the folder cannot be listed
        for path in target.parent.iterdir():
            match = part.fullmatch(path.name)
            if match is not None and not is_alive(int(match[1])):
                _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):  # leave files that cannot be opened, locked or removed
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(file)
            if S_ISREG(about.st_mode) and about.st_uid == os.geteuid():
                lock_file(file)
                path.unlink()
        finally:
            os.close(file)
