"""`attn record -- COMMAND`: what the heads of any PyTorch program do, while it runs as it always does."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from shlex import join
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from attncli.arrays import read_tokens
from attncli.commands.command import DEBUG, OUTPUT_FLAGS, STEP, Command, argument, option
from attncli.commands.output import Destination
from attncli.errors import UserError
from attncli.plain_text import counted, note
from attncli.report import Report
from attncli.runs.store_files import is_store_name
from attncli.saved import read_reports

EXAMPLES = (
    "attn record -- python predict.py --input a.csv",
    "attn record -o run.html -- python -m mypackage.evaluate",
    "attn record --modules '*.self_attn' --calls last -o heads.csv -- python train.py",
    "attn record --grid 14x14 -o picture.html -- python classify.py cat.png",
)
PROGRAM = argument(
    "program", "The program and its own arguments, behind --.", "-- COMMAND ...", kind=list[str]
)
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
    "reaches a product; not heard are JAX, compiled extensions, scripted code and Python with -I or -E"
)
NOT_FOUND, NOT_EXECUTABLE = 127, 126
OF_SIGNAL = 128
"""What a shell adds to the number of the signal that ended a program."""
FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


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
    program: list[str],
    calls: str | None,
    modules: str | None,
    heads: list[str],
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
    spec = {"program": join(program), "modules": modules, "calls": _calls(calls), "heads": heads}
    settings = {
        "tokens": None if tokens is None else [*read_tokens(tokens)],
        "grid": _grid(grid),
        "calls": _calls(calls),
        "modules": modules,
        "heads": _heads(heads),
        "spec": {**spec, "tokens": tokens, "grid": grid, "image": image and str(Path(image).resolve())},
    }
    with TemporaryDirectory(prefix="attn-") as folder:
        code = _run(program, settings, Path(folder))
        _show(Path(folder), to)
    return code


def _run(program: Sequence[str], settings: Mapping[str, Any], folder: Path) -> int:
    """Run the program with the folder of `sitecustomize` first on its path; its exit code, as in a shell."""
    child = str(Path(__file__).parents[1] / "child")
    paths = [child, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "ATTN_RECORD_FOLDER": str(folder),
        "ATTN_RECORD_SETTINGS": json.dumps(settings),
    }
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    try:
        running = subprocess.Popen([*program], env=environment)
    except FileNotFoundError:
        note(f"{program[0]}: no such command")
        return NOT_FOUND
    except OSError as error:
        note(f"{program[0]}: {error.strerror}")
        return NOT_EXECUTABLE
    with _signals_for(running):
        code = running.wait()
    return OF_SIGNAL - code if code < 0 else code


@contextmanager
def _signals_for(running: "subprocess.Popen[bytes]") -> Iterator[None]:
    """While it is open the program gets our signals; Ctrl-C reaches it by itself."""

    def forward(number: int, _frame: FrameType | None) -> None:
        running.send_signal(number)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for name in FORWARDED:
        if number := getattr(signal, name, None):
            before[number] = signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show(folder: Path, to: Destination) -> None:
    """What each process heard, in a file of its own where there are several; else why there is nothing."""
    heard = sorted(folder.glob("*.json"))
    for file in sorted(folder.glob("*.error")):
        note(f"the recording failed: {file.read_text(encoding='utf-8', errors='replace')}")
    if not heard:
        missed = [line for file in folder.glob("*.silent") for line in file.read_text().splitlines()]
        if not [*folder.glob("*.error")]:
            note(" ".join([WATCHED_FOR, *missed]))
        return
    path = to.path
    for file in heard:
        (report,) = read_reports(str(file)).reports
        if path is not None and len(heard) > 1:
            to.path = path.with_name(f"{path.stem}.{file.stem}{path.suffix}")
        _write(report, to)


def _write(report: Report, to: Destination) -> None:
    with redirect_stdout(sys.stderr):  # the program's own output stands on stdout
        to.write([report])
    if to.path is not None:
        modules = report.table("modules")
        note(f"{to.path}: {counted(len(report.table('heads')), 'head')} of {counted(len(modules), 'module')}")


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
)
