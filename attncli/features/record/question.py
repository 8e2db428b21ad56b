"""`attn record -- COMMAND`: record the heads of any PyTorch program while it runs as usual."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import attncli
from attncli.commands.command import (
    DEBUG,
    FIGURE_WIDTH,
    FORMAT,
    OPEN,
    OUTPUT,
    OUTPUT_FLAGS,
    SHOW,
    STEP,
    TITLE,
    Command,
    argument,
    option,
    refuse_flags,
)
from attncli.commands.expectations import exit_code
from attncli.commands.output import Destination, checked_store
from attncli.errors import DONE, FAILED, UserError, WriteError, one_line_reason
from attncli.features.record.results import RecordedHeads
from attncli.features.record.settings import RECORDED_STATISTICS, RecordSpec
from attncli.features.record.stored_runs import RunsIntoStore
from attncli.models.arrays import read_tokens
from attncli.records.report import Report
from attncli.runs.report_values import Expectations, parse_conditions, refuse_unmeasured, values_of
from attncli.runs.saved_reports import read_array_report
from attncli.runs.store import open_store
from attncli.runs.store_files import remove
from attncli.settings import is_offered
from attncli.system.files import is_store_name
from attncli.system.plain_text import counted, note, whole_number
from attncli.views import VIEWS

EXAMPLES = (
    "attn record -- python predict.py --input a.csv",
    "attn record -o run.html -- python -m mypackage.evaluate",
    "attn record --modules '*.self_attn' --calls last -o heads.csv -- python train.py",
    "attn record -o run.db -- python -m mypackage.evaluate",
    "attn record --grid 14x14 -o picture.html -- python classify.py cat.png",
)
PROGRAM = argument("program", "The program and its arguments, after --.", "-- COMMAND", kind=list[str])
CALLS = option(
    "--calls",
    "Calls of each module to measure: the first N, all, or the last. Other calls are only counted. "
    "[default: 1; all with -o FILE.db]",
    "N|all|last",
    group="Input",
    everyday="measure the first N calls of each module, all calls, or the last",
)
MODULES = option(
    "--modules",
    "Only modules whose path matches a pattern, such as '*.self_attn' or 'encoder.*'; separate several with "
    "commas.",
    "PATTERN",
    group="Input",
    everyday="only modules whose path matches, such as '*.self_attn'",
)
HEADS = option(
    "--heads",
    "Number of heads of the modules that match a pattern, if texts and heads share one axis; repeatable.",
    "PATTERN=N",
    kind=list[str],
    group="Input",
    everyday="the number of heads, if attn cannot infer it",
)
TOKENS = option(
    "--tokens",
    "The tokens that self-attention reads: one per line, or a JSON list.",
    "FILE",
    group="Input",
    everyday="the tokens, one per line",
    reads_file=True,
)
GRID = option(
    "--grid",
    "The last tokens are patches of a picture, in a grid of rows x columns.",
    "ROWSxCOLUMNS",
    group="Input",
    everyday="the grid of patches, which are the last tokens: 14x14",
)
IMAGE = option(
    "--image",
    "The picture file; needs --grid.",
    "FILE",
    group="Input",
    everyday="the picture file; needs --grid",
    reads_file=True,
)
EXPECT = option(
    "--expect",
    'Exit 1 unless every head meets the condition: "sink_mass < 0.9"; repeatable.',
    "CONDITION",
    kind=list[str],
    everyday='condition for every head: "sink_mass < 0.9"',
)
KEEP = replace(
    OUTPUT,
    help="Write to a file, complete or not at all; - is standard output. FILE.db stores each call of the "
    "model as a run.",
    everyday="write to a file, or store each call as a run (.db)",
)
DETECTABLE = (
    "only torch's attention functions and softmaxes whose result is multiplied by values are detected, "
    "not JAX, compiled extensions or scripted code"
)
NO_TORCH = "no attention was detected: the program's Python did not import torch"
NO_PYTHON = (
    "no attention was detected: the program started no Python, or only Python that ignores its "
    "environment (python -I, -E, -S)"
)
LOST = "a process was ended by a signal or os._exit: {} not written"
SETTINGS = "settings.json"
SECONDS_BETWEEN = 0.5
"""Seconds between transfers of runs into a store."""
SINK_RATE = "model.sink_rate"
"""The statistic over all heads that conditions may use."""
NO_SUCH_COMMAND, NOT_EXECUTABLE = 127, 126
SIGNAL_BASE = 128
"""Added to the number of the signal that ended a program, as shells do."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals passed on to the program; Ctrl-C and Ctrl-Z reach it without help."""


def _calls(value: str | None, default: int | str) -> int | str:
    if value is None:
        return default
    if value in ("all", "last"):
        return value
    if number := whole_number(value):
        return number
    raise UserError(f"--calls: must be a number of calls, all, or last (got {value:.60})")


def _heads(values: Sequence[str]) -> dict[str, int]:
    heads = {}
    for value in values:
        pattern, _, number = value.rpartition("=")
        if not pattern or not 0 < (count := whole_number(number) or 0) <= 10**6:
            raise UserError(f"--heads: must be a pattern and a number, such as '*.attn=8' (got {value:.60})")
        heads[pattern] = count
    return heads


def _grid(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = value.lower().replace("×", "x").partition("x")[::2]
    rows, columns = (whole_number(size) or 0 for size in sizes)
    if not 0 < rows * columns <= 10**6:
        raise UserError(f"--grid: must be rows x columns, such as 14x14 (got {value:.60})")
    return rows, columns


def record(
    program: Sequence[str],
    calls: str | None,
    modules: str | None,
    heads: Sequence[str],
    tokens: str | None,
    grid: str | None,
    image: str | None,
    expect: Sequence[str],
    **flags: Any,
) -> int:
    """Run the program unchanged, then write the recording. Returns the program's exit code."""
    store = _store_path(flags, calls)
    if image is not None and grid is None:
        raise UserError("--image: needs --grid for the number of patches")
    if image is not None:
        from attncli.models.image_files import open_picture

        open_picture(image, "--image")
    to = Destination(**flags) if store is None else store
    _refuse_unwritable(to.path if isinstance(to, Destination) else to)
    expectations = _expectations(expect)
    measured = _calls(calls, 1 if store is None else "all")
    spec = RecordSpec.model_validate(
        {
            "program": join(program),
            "modules": modules,
            "calls": measured,
            "heads": heads,
            "tokens": tokens,
            "grid": grid,
            "image": image and str(Path(image).resolve()),
        }
    )
    settings = {
        "tokens": None if tokens is None else [*read_tokens(tokens)],
        "grid": _grid(grid),
        "calls": measured,
        "modules": modules,
        "heads": _heads(heads),
        "into_store": store is not None,
        "spec": spec.model_dump(),
    }
    with TemporaryDirectory(prefix="attn-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
        return _recorded(program, folder, to, spec, expectations)


def _recorded(
    program: Sequence[str], folder: Path, to: Destination | Path, spec: RecordSpec, expectations: Expectations
) -> int:
    """Run the program, then write the report or store the program's runs.

    Returns the program's exit code or, if that is 0, attn's own.
    """
    code = result = DONE
    try:
        if isinstance(to, Destination):
            code = _run(program, folder)
            if _was_started(folder, code):
                result = _show(folder, to, spec, expectations)
        else:
            is_new = not to.exists()
            with open_store(to, fresh=False, rows=False, weights=False) as opened:
                runs = RunsIntoStore(folder, opened, spec, expectations, note)
                code = _run(program, folder, runs.try_to_take_new)
                if _was_started(folder, code):
                    result = _keep(folder, runs)
                if is_new and not runs.num_stored:
                    remove(to)
    except UserError as error:  # a failure in the program takes precedence
        if code == DONE:
            raise
        for line in error.lines:
            note(line)
    return code if code != DONE else result


def _store_path(flags: Mapping[str, Any], calls: str | None) -> Path | None:
    """Return the store named by -o, if any.

    Raises UserError if other flags cannot be combined with a store.
    """
    output = flags[OUTPUT.name]
    if output is None or not is_store_name(output):
        return None
    report_flags = {each.name: flags[each.name] or None for each in (FORMAT, SHOW, OPEN, TITLE, FIGURE_WIDTH)}
    refuse_flags(report_flags, f"is only for reports: use attn results {output} to show a store")
    if calls == "last":
        raise UserError("--calls last: is only for reports: a store receives each call as it happens")
    return checked_store(Path(output))


def _expectations(texts: Sequence[str]) -> Expectations:
    """Return the conditions on the heads. Raises UserError for conditions on unknown statistics."""
    conditions = parse_conditions(texts, "--expect", numbers_only=True)
    head_conditions = [each for each in conditions if each.name != SINK_RATE]
    refuse_unmeasured(head_conditions, [*RECORDED_STATISTICS, SINK_RATE], "--expect")
    return Expectations(conditions)


def _was_started(folder: Path, code: int) -> bool:
    return code not in (NO_SUCH_COMMAND, NOT_EXECUTABLE) or (folder / "python").exists()


def _keep(folder: Path, runs: RunsIntoStore) -> int:
    """Store the last runs, including those still open when their processes ended. Returns the exit code.

    Raises WriteError if some runs cannot be stored.
    """
    try:
        runs.take_new()
        runs.take_new("*.open")
    except (sqlite3.Error, OSError) as error:
        count = len(runs.unwritten)
        lost = f"{count:,} of {counted(runs.num_stored + count, 'run')} {'is' if count == 1 else 'are'} lost"
        raise WriteError(
            f"-o {runs.store.path}: cannot be written: {one_line_reason(error)}: {lost}"
        ) from None
    has_failed = _note_failures(folder)
    for line in _lines(folder, "*.notes"):
        note(line)
    not_written = [line.split(" ", 1) for line in _lines(folder, "*.lost")]
    if not_written:
        count = sum(int(number) for number, _ in not_written)
        note(f"{counted(count, 'run')} could not be written: {not_written[0][1]}")
    if runs.num_stored:
        if not all(map(_has_ended, folder.glob("*.state"))):
            note(LOST.format("its last seconds were"))
        path = runs.store.path
        ways_on = ", ".join(filter(is_offered, (f"attn results {path}", f"attn watch {path}")))
        note(f"{runs} ({ways_on})" if ways_on else str(runs))
    elif not has_failed:
        note(_why_nothing(folder, runs.spec))
    code = exit_code(runs.expectations.unmet(), broken=runs.num_broken)
    return FAILED if not_written else code


def _lines(folder: Path, pattern: str) -> list[str]:
    """Return the distinct lines in the files that the processes left."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob(pattern))]
    return [*dict.fromkeys(line for text in texts for line in text.splitlines())]


def _note_failures(folder: Path) -> bool:
    """Print a line for each process whose recording failed. Returns True if any failed."""
    failed = _lines(folder, "*.error")
    for line in failed:
        note(f"the recording failed: {line}")
    return bool(failed)


def _refuse_unwritable(path: Path | None) -> None:
    """Raise WriteError before the program starts if the report could not be written afterwards."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise WriteError(f"-o {path}: cannot be written: Permission denied")


def _run(program: Sequence[str], folder: Path, meanwhile: Callable[[], None] | None = None) -> int:
    """Run the program with attn's `sitecustomize` first on its path.

    Returns the exit code that a shell would return. `meanwhile` is called regularly until the program ends.
    """
    start = Path(__file__).parent / "child" / "start"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(start), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "ATTN_RECORD_FOLDER": str(folder),
        "ATTN_RECORD_PACKAGE": str(Path(attncli.__file__).parent),
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with _signals_passed_on() as forward_to:
        try:
            running = subprocess.Popen(program, env=environment)
        except FileNotFoundError:
            note(f"{program[0]}: no such command{_as_script(program[0])}")
            return NO_SUCH_COMMAND
        except OSError as error:
            note(f"{program[0]}: cannot be run: {error.strerror}{_as_script(program[0])}")
            return NOT_EXECUTABLE
        forward_to(running)
        while (code := _ended_within(running, None if meanwhile is None else SECONDS_BETWEEN)) is None:
            assert meanwhile is not None, "there is a timeout only with `meanwhile`"
            meanwhile()
    return SIGNAL_BASE - code if code < 0 else code


def _as_script(name: str) -> str:
    is_script = Path(name).suffix == ".py" and Path(name).is_file()
    return f": did you mean python {name}?" if is_script else ""


def _ended_within(running: "subprocess.Popen[bytes]", seconds: float | None) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return running.wait(seconds)
    return None


@contextmanager
def _signals_passed_on() -> "Iterator[Callable[[subprocess.Popen[bytes]], None]]":
    """Forward signals to a program within this context; yield a function to call after the program's start.

    Signals that are ignored, as under nohup, stay ignored.
    """
    programs: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            return
        early.append(number)
        for running in programs:
            running.send_signal(early.pop())

    def forward_to(running: "subprocess.Popen[bytes]") -> None:
        programs.append(running)
        while early:
            running.send_signal(early.pop())

    before = {
        number: signal.signal(number, forward)
        for number in (signal.SIGINT, *FORWARDED)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(folder: Path, to: Destination, spec: RecordSpec, expectations: Expectations) -> int:
    """Write the report of each process, to separate files if there are several; if none, print the reason.

    Returns the exit code.
    """
    reports = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    if not _note_failures(folder) and not reports:
        note(_why_nothing(folder, spec))
    path, unmet = to.path, list[str]()
    for number, file in enumerate(reports, 1):
        if not _has_ended(file):
            note(LOST.format("its last seconds were"))
        if path is not None and len(reports) > 1 and path.is_file() is path.exists():
            to.path = path.with_name(f"{path.stem}.{_name(file, reports) or number}{path.suffix}")
        report = read_array_report(str(file))
        assert report is not None, "attn has written it"
        _write(report, to)
        prefix = "" if len(reports) == 1 else f"{to.path or f'process {number}'}: "
        unmet += [f"{prefix}{line}" for line in _broken(report, expectations)]
    return exit_code([*unmet, *expectations.unmet()])


def _broken(report: Report, expectations: Expectations) -> Iterator[str]:
    """Yield a line for each condition that fails, and for each module with NaN, because means exclude NaN."""
    if not expectations.conditions:
        return
    yield from expectations.broken(*values_of(report))
    for row in report.result_of(RecordedHeads).modules:
        if row.nan_texts:
            texts = f"{row.nan_texts} of {counted(row.texts, 'text')}"
            yield f"expected numbers: got NaN in {texts} of {row.module}"
        elif row.nan_padding:
            rows = counted(row.nan_padding, "row")
            yield f"expected numbers: got NaN in {rows} of padding of {row.module}"


def _why_nothing(folder: Path, spec: RecordSpec) -> str:
    if not (folder / "python").exists():
        return NO_PYTHON
    states = [*folder.glob("*.state")]
    if not states:
        return NO_TORCH
    if not all(map(_has_ended, states)):
        return LOST.format("its recording was")
    missed = _lines(folder, "*.silent")
    where = "" if spec.modules is None else f" in modules that match --modules {spec.modules}"
    return " ".join([f"no attention was detected{where}: {DETECTABLE}.", *missed]).removesuffix(".")


def _has_ended(file: Path) -> bool:
    return file.with_suffix(".state").read_text(encoding="utf-8") != "listening"


def _name(file: Path, reports: Sequence[Path]) -> str | None:
    """Return a name such as `rank1`, or None unless every process has a different rank."""
    ranks = [each.suffixes[0][1:] for each in reports]
    is_ranked = all(ranks) and len({*ranks}) == len(ranks)
    return f"rank{file.suffixes[0][1:]}" if is_ranked else None


def _write(report: Report, to: Destination) -> None:
    is_screen = to.path is None and to.view.suffixes == VIEWS["table"].suffixes
    with redirect_stdout(sys.stderr) if is_screen else nullcontext():  # stdout belongs to the program
        to.write([report])
    if to.path is not None:
        heads, modules = (len(report.table(name) or ()) for name in ("heads", "modules"))
        note(f"{to.path}: {counted(heads, 'head')} of {counted(modules, 'module')}")


command = partial(
    Command,
    run=record,
    parameters=[
        PROGRAM,
        *(CALLS, MODULES, HEADS, TOKENS, GRID, IMAGE, EXPECT),
        *(KEEP if flag is OUTPUT else flag for flag in OUTPUT_FLAGS if flag is not STEP),
        DEBUG,
    ],
    examples=EXAMPLES,
    runs_program=True,
)
