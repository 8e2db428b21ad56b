"""`attn record -- COMMAND`: what the heads of any PyTorch program do, while it runs as it always does."""

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
    refuse_given,
)
from attncli.commands.output import Destination, checked_store
from attncli.errors import DONE, FAILED, UserError, WriteError, reason_of
from attncli.features.record.results import RecordedHeads
from attncli.features.record.settings import RECORDED_STATISTICS, RecordSpec
from attncli.features.record.stored_runs import RunsIntoStore
from attncli.models.arrays import read_tokens
from attncli.records.report import Report
from attncli.runs.report_values import Expectations, parse_conditions, refuse_unmeasured, values_of
from attncli.runs.saved_reports import read_array_report
from attncli.runs.store import open_store
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
PROGRAM = argument("program", "The program and its own arguments, behind --.", "-- COMMAND", kind=list[str])
CALLS = option(
    "--calls",
    "Which calls of each module: the first N, all, or the last. The others are counted. "
    "[default: 1, into a store all]",
    "N|all|last",
    group="Input",
    everyday="the first N calls of each module, all, or the last",
)
MODULES = option(
    "--modules",
    "Only modules whose path fits a pattern, as '*.self_attn' or 'encoder.*'; several with commas.",
    "PATTERN",
    group="Input",
    everyday="only modules whose path fits, as '*.self_attn'",
)
HEADS = option(
    "--heads",
    "How many heads the modules of a pattern have, where their texts and heads are one axis; repeatable.",
    "PATTERN=N",
    kind=list[str],
    group="Input",
    everyday="how many heads, where the program does not tell",
)
TOKENS = option(
    "--tokens",
    "The tokens of self-attention: one per line, or a JSON list.",
    "FILE",
    group="Input",
    everyday="the tokens, one per line",
    reads_file=True,
)
GRID = option(
    "--grid",
    "The tokens are patches of a picture: rows x columns, the last of the tokens.",
    "ROWSxCOLUMNS",
    group="Input",
    everyday="the tokens are patches of a picture, as 14x14",
)
IMAGE = option(
    "--image",
    "With --grid: the picture whose patches they are.",
    "FILE",
    group="Input",
    everyday="with --grid: the picture",
    reads_file=True,
)
EXPECT = option(
    "--expect",
    'A condition that every head must meet, or exit 1: "sink_mass < 0.9"; repeatable.',
    "CONDITION",
    kind=list[str],
    everyday='what every head must meet: "sink_mass < 0.9"',
)
KEEP = replace(
    OUTPUT,
    help="Write to a file, whole or not at all; - is standard output. FILE.db keeps each call of the model "
    "as a run.",
    everyday="write to a file, or keep each call as a run (.db)",
)
WATCHED_FOR = (
    "torch's attention functions were watched for, and softmaxes whose result "
    "reaches a product; JAX, compiled extensions and scripted code are not heard"
)
NO_TORCH = "no attention was heard: the program's Python did not import torch"
NO_PYTHON = (
    "no attention was heard: no Python was started, or one that ignores its environment (python -I, -E, -S)"
)
LOST = "a process was ended by a signal or os._exit: what it heard {}is not written"
SETTINGS = "settings.json"
SECONDS_BETWEEN = 0.5
"""How often runs are taken into a store."""
SINK_RATE = "model.sink_rate"
"""The number of all heads that conditions may be on."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
OF_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a program."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C and Ctrl-Z reach the program by themselves."""


def _calls(value: str | None, default: int | str) -> int | str:
    if value is None:
        return default
    if value in ("all", "last"):
        return value
    if number := whole_number(value):
        return number
    raise UserError(f"--calls: must be a number of calls, all or last (got {value:.60})")


def _heads(values: Sequence[str]) -> dict[str, int]:
    heads = {}
    for value in values:
        pattern, _, number = value.rpartition("=")
        if not pattern or not 0 < (count := whole_number(number) or 0) <= 10**6:
            raise UserError(f"--heads: must be a pattern and a number, as '*.attn=8' (got {value:.60})")
        heads[pattern] = count
    return heads


def _grid(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = value.lower().replace("×", "x").partition("x")[::2]
    rows, columns = (whole_number(size) or 0 for size in sizes)
    if not 0 < rows * columns <= 10**6:
        raise UserError(f"--grid: must be rows x columns, as 14x14 (got {value:.60})")
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
    """Run the program as it is, then show what was heard of it; its exit code."""
    store = _store_named(flags, calls)
    if image is not None and grid is None:
        raise UserError("--image: needs --grid, which says how many patches it has")
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
    """Run the program, then write the report or keep its runs in a store: its exit code, or ours."""
    code, is_met = DONE, True
    try:
        if isinstance(to, Destination):
            code = _run(program, folder)
            if _was_started(folder, code):
                is_met = _show(folder, to, spec, expectations)
        else:
            with open_store(to, fresh=False, rows=False, weights=False) as opened:
                runs = RunsIntoStore(folder, opened, spec, expectations, note)
                code = _run(program, folder, runs.try_to_take_new)
                if _was_started(folder, code):
                    is_met = _keep(folder, runs)
    except UserError as error:  # the program's own failure comes first
        if code == DONE:
            raise
        for line in error.lines:
            note(line)
        return code
    return code if code != DONE or is_met else FAILED


def _store_named(flags: Mapping[str, Any], calls: str | None) -> Path | None:
    """The store that -o names; UserError where what else was asked does not go with one."""
    output = flags[OUTPUT.name]
    if output is None or not is_store_name(output):
        return None
    of_a_report = {each.name: flags[each.name] or None for each in (FORMAT, SHOW, OPEN, TITLE)}
    refuse_given(of_a_report, f"is for a report: attn results {output} shows what a store has")
    if calls == "last":
        raise UserError("--calls last: is for a report: a store keeps each call as it happens")
    return checked_store(Path(output))


def _expectations(texts: Sequence[str]) -> Expectations:
    """The conditions on the heads; UserError for those on what no head has."""
    conditions = parse_conditions(texts, "--expect", numbers_only=True)
    of_heads = [each for each in conditions if each.name != SINK_RATE]
    refuse_unmeasured(of_heads, [*RECORDED_STATISTICS, SINK_RATE], "--expect")
    return Expectations(conditions)


def _was_started(folder: Path, code: int) -> bool:
    return code not in (NOT_FOUND, NOT_EXECUTABLE) or (folder / "python").exists()


def _keep(folder: Path, runs: RunsIntoStore) -> bool:
    """Store the last runs, those of ended processes included that were not over; whether all is as expected.

    WriteError where some cannot be stored.
    """
    try:
        runs.take_new()
        runs.take_new("*.open")
    except (sqlite3.Error, OSError) as error:
        count = len(runs.unwritten)
        lost = f"{count:,} of {counted(runs.num_stored + count, 'run')} {'is' if count == 1 else 'are'} lost"
        raise WriteError(f"-o {runs.store.path}: cannot be written: {reason_of(error)}: {lost}") from None
    has_failed = _tell_failures(folder)
    for line in _lines(folder, "*.notes"):
        note(line)
    not_written = [line.split(" ", 1) for line in _lines(folder, "*.lost")]
    if not_written:
        count = sum(int(number) for number, _ in not_written)
        note(f"{counted(count, 'run')} could not be handed over: {not_written[0][1]}")
    if runs.num_stored:
        if not all(map(_has_ended, folder.glob("*.state"))):
            note(LOST.format("in its last seconds "))
        path = runs.store.path
        ways_on = ", ".join(filter(is_offered, (f"attn results {path}", f"attn watch {path}")))
        note(f"{runs} ({ways_on})" if ways_on else str(runs))
    elif not has_failed:
        note(_why_nothing(folder, runs.spec))
    return _tell_unmet(runs.expectations) and not runs.num_broken and not not_written


def _lines(folder: Path, pattern: str) -> list[str]:
    """What processes left to say, each once."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob(pattern))]
    return [*dict.fromkeys(line for text in texts for line in text.splitlines())]


def _tell_unmet(expectations: Expectations) -> bool:
    """Whether there was something to compare each condition with; else a line says that there was not."""
    unmet = expectations.unmet()
    for line in unmet:
        note(line)
    return not unmet


def _tell_failures(folder: Path) -> bool:
    """Whether recording failed in a process; a line says why."""
    failed = _lines(folder, "*.error")
    for line in failed:
        note(f"the recording failed: {line}")
    return bool(failed)


def _refuse_unwritable(path: Path | None) -> None:
    """Raise WriteError now for a file that could not be written once the program has run for hours."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise WriteError(f"-o {path}: cannot be written: Permission denied")


def _run(program: Sequence[str], folder: Path, meanwhile: Callable[[], None] | None = None) -> int:
    """Run the program with our `sitecustomize` first on its path; its exit code, as a shell has it.

    `meanwhile` is called now and then until it has ended.
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
            return NOT_FOUND
        except OSError as error:
            note(f"{program[0]}: cannot be run: {error.strerror}{_as_script(program[0])}")
            return NOT_EXECUTABLE
        forward_to(running)
        while (code := _ended_within(running, None if meanwhile is None else SECONDS_BETWEEN)) is None:
            assert meanwhile is not None, "else it has waited"
            meanwhile()
    return OF_SIGNAL - code if code < 0 else code


def _as_script(name: str) -> str:
    is_script = Path(name).suffix == ".py" and Path(name).is_file()
    return f": did you mean python {name}?" if is_script else ""


def _ended_within(running: "subprocess.Popen[bytes]", seconds: float | None) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return running.wait(seconds)
    return None


@contextmanager
def _signals_passed_on() -> "Iterator[Callable[[subprocess.Popen[bytes]], None]]":
    """While it is open our signals are those of a program, which is named once it has started.

    What the program is to ignore, as under nohup, stays ignored.
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


def _show(folder: Path, to: Destination, spec: RecordSpec, expectations: Expectations) -> bool:
    """What each process heard, in a file of its own where there are several; else why there is nothing.

    Whether all is as expected.
    """
    heard = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    if not _tell_failures(folder) and not heard:
        note(_why_nothing(folder, spec))
    path, is_met = to.path, True
    for number, file in enumerate(heard, 1):
        if not _has_ended(file):
            note(LOST.format("in its last seconds "))
        if path is not None and len(heard) > 1 and path.is_file() is path.exists():
            to.path = path.with_name(f"{path.stem}.{_name(file, heard) or number}{path.suffix}")
        report = read_array_report(str(file))
        assert report is not None, "attn has written it"
        _write(report, to)
        for line in _broken(report, expectations):
            is_met = False
            note(line if len(heard) == 1 else f"{to.path or f'process {number}'}: {line}")
    return _tell_unmet(expectations) and is_met


def _broken(report: Report, expectations: Expectations) -> Iterator[str]:
    """A line for each condition that does not hold, and for NaN, which means leave out."""
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
        return LOST.format("")
    missed = _lines(folder, "*.silent")
    fitting = "" if spec.modules is None else f" in modules that fit --modules {spec.modules}"
    return " ".join([f"no attention was heard{fitting}: {WATCHED_FOR}.", *missed]).removesuffix(".")


def _has_ended(file: Path) -> bool:
    return file.with_suffix(".state").read_text(encoding="utf-8") != "listening"


def _name(file: Path, heard: Sequence[Path]) -> str | None:
    """`rank1`, where every process has a rank of its own."""
    ranks = [each.suffixes[0][1:] for each in heard]
    is_ranked = all(ranks) and len({*ranks}) == len(ranks)
    return f"rank{file.suffixes[0][1:]}" if is_ranked else None


def _write(report: Report, to: Destination) -> None:
    is_screen = to.path is None and to.view.suffixes == VIEWS["table"].suffixes
    with redirect_stdout(sys.stderr) if is_screen else nullcontext():  # stdout has the program's own output
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
