"""`attn record -- COMMAND`: what the heads of any PyTorch program do, while it runs as it always does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from shlex import join
from shutil import copy
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from attncli.arrays import read_tokens
from attncli.commands.command import DEBUG, OUTPUT_FLAGS, STEP, Command, argument, option
from attncli.commands.output import Destination
from attncli.errors import DONE, UserError, WriteError
from attncli.plain_text import counted, note
from attncli.report import Report
from attncli.runs.store_files import is_store_name
from attncli.saved import read_array_report
from attncli.views import VIEWS

EXAMPLES = (
    "attn record -- python predict.py --input a.csv",
    "attn record -o run.html -- python -m mypackage.evaluate",
    "attn record --modules '*.self_attn' --calls last -o heads.csv -- python train.py",
    "attn record --grid 14x14 -o picture.html -- python classify.py cat.png",
)
PROGRAM = argument("program", "The program and its own arguments, behind --.", "-- COMMAND", kind=list[str])
CALLS = option(
    "--calls",
    "Which calls of each module: the first N, all, or the last. The others are counted. [default: 1]",
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
WATCHED_FOR = (
    "no attention was heard: torch's attention functions were watched for, and softmaxes whose result "
    "reaches a product; JAX, compiled extensions and scripted code are not heard"
)
NO_TORCH = "no attention was heard: the program's Python did not import torch"
NO_PYTHON = (
    "no attention was heard: no Python was started, or one that ignores its environment (python -I, -E, -S)"
)
LOST = "a process was ended by a signal or os._exit: what it heard {}is not written"
SETTINGS = "settings.json"
NOT_FOUND, NOT_EXECUTABLE = 127, 126
OF_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a program."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Ctrl-C and Ctrl-Z reach the program by themselves."""


def _calls(value: str | None) -> int | str:
    if value is None:
        return 1
    if value in ("all", "last"):
        return value
    if value.isdecimal() and 0 < int(value) <= 10**9:
        return int(value)
    raise UserError(f"--calls: must be a number of calls, all or last (got {value:.60})")


def _heads(values: Sequence[str]) -> dict[str, int]:
    heads = {}
    for value in values:
        pattern, _, number = value.rpartition("=")
        if not pattern or not number.isdecimal() or not 0 < int(number) <= 10**6:
            raise UserError(f"--heads: must be a pattern and a number, as '*.attn=8' (got {value:.60})")
        heads[pattern] = int(number)
    return heads


def _grid(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    rows, _, columns = value.lower().replace("×", "x").partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and 0 < int(rows) * int(columns) <= 10**6):
        raise UserError(f"--grid: must be rows x columns, as 14x14 (got {value:.60})")
    return int(rows), int(columns)


def record(
    program: Sequence[str],
    calls: str | None,
    modules: str | None,
    heads: Sequence[str],
    tokens: str | None,
    grid: str | None,
    image: str | None,
    **flags: Any,
) -> int:
    """Run the program as it is, then show what was heard of it; its exit code."""
    if flags["output"] is not None and is_store_name(flags["output"]):
        raise UserError(
            f"-o {flags['output']}: a store keeps no recording: -o FILE.json does, and attn show reads it"
        )
    if image is not None and grid is None:
        raise UserError("--image: needs --grid, which says how many patches it has")
    to = Destination(**flags)
    _refuse_unwritable(to.path)
    spec = {"program": join(program), "modules": modules, "calls": _calls(calls), "heads": heads}
    settings = {
        "tokens": None if tokens is None else [*read_tokens(tokens)],
        "grid": _grid(grid),
        "calls": _calls(calls),
        "modules": modules,
        "heads": _heads(heads),
        "spec": {**spec, "tokens": tokens, "grid": grid, "image": image and str(Path(image).resolve())},
    }
    with TemporaryDirectory(prefix="attn-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
        code = _run(program, folder)
        if code in (NOT_FOUND, NOT_EXECUTABLE) and not (folder / "python").exists():
            return code
        try:
            _show(folder, to)
        except UserError as error:  # the program's own failure comes first
            if code == DONE:
                raise
            for line in error.lines:
                note(line)
    return code


def _refuse_unwritable(path: Path | None) -> None:
    """Raise WriteError now for a file that could not be written once the program has run for hours."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise WriteError(f"-o {path}: cannot be written: Permission denied")


def _run(program: Sequence[str], folder: Path) -> int:
    """Run the program with our `sitecustomize` first on its path; its exit code, as a shell has it."""
    package = Path(__file__).parents[1]
    start = folder / "start"
    start.mkdir()
    copy(package / "child" / "sitecustomize.py", start)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(start), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "ATTN_RECORD_FOLDER": str(folder),
        "ATTN_RECORD_PACKAGE": str(package),
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with _signals_passed_on() as forward_to:
        try:
            running = subprocess.Popen(program, env=environment)
        except FileNotFoundError:
            note(f"{program[0]}: no such command")
            return NOT_FOUND
        except OSError as error:
            note(f"{program[0]}: cannot be run: {error.strerror}")
            return NOT_EXECUTABLE
        forward_to(running)
        code = running.wait()
    return OF_SIGNAL - code if code < 0 else code


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


def _show(folder: Path, to: Destination) -> None:
    """What each process heard, in a file of its own where there are several; else why there is nothing."""
    heard = sorted(folder.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)
    failed = dict.fromkeys(file.read_text(encoding="utf-8") for file in folder.glob("*.error"))
    for line in failed:
        note(f"the recording failed: {line}")
    if not heard and not failed:
        note(_why_nothing(folder))
    path = to.path
    for number, file in enumerate(heard, 1):
        if not _has_ended(file):
            note(LOST.format("in its last seconds "))
        if path is not None and len(heard) > 1 and path.is_file() is path.exists():
            to.path = path.with_name(f"{path.stem}.{_name(file, heard) or number}{path.suffix}")
        report = read_array_report(str(file))
        assert report is not None, "attn has written it"
        _write(report, to)


def _why_nothing(folder: Path) -> str:
    if not (folder / "python").exists():
        return NO_PYTHON
    states = [*folder.glob("*.state")]
    if not states:
        return NO_TORCH
    if not all(map(_has_ended, states)):
        return LOST.format("")
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.silent")]
    missed = dict.fromkeys(line for text in texts for line in text.splitlines())
    return " ".join([f"{WATCHED_FOR}.", *missed]).removesuffix(".")


def _has_ended(file: Path) -> bool:
    return file.with_suffix(".state").read_text(encoding="utf-8") == "ended"


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
        *(CALLS, MODULES, HEADS, TOKENS, GRID, IMAGE),
        *(flag for flag in OUTPUT_FLAGS if flag is not STEP),
        DEBUG,
    ],
    examples=EXAMPLES,
    runs_program=True,
)
