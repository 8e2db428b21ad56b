"""A process of `attn`, or of Python, in a tenth of a second: forked once torch and transformers are there.

Streams, signals, exit codes and terminals are those of any process. What happens while Python starts or
imports something is another matter: tests of that start `python -m attncli`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryFile

from tests.conftest import Ended
from tests.running import ROOT
from tools.refresh_outputs import start_attn, start_python


def run_attn(
    arguments: Sequence[str],
    *,
    given: str | Path = "",
    read: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Ended:
    """What a process answers between two pipes: its standard input has the text `given`, or is that file.

    Whoever reads its standard output closes the pipe after `read` bytes.
    """
    return _ended(start_attn, arguments, given, read, folder or Path.cwd(), environment)


def run_python(program: str, *arguments: object) -> Ended:
    """What a program does that is not about how Python starts, nor about what it imports."""
    start = partial(start_python, program)
    return _ended(start, [*map(str, arguments)], "", None, ROOT, os.environ)


def _ended(
    start: Callable[..., BaseProcess],
    arguments: Sequence[str],
    given: str | Path,
    read: int | None,
    folder: Path,
    environment: Mapping[str, str],
) -> Ended:
    with TemporaryFile() as err:
        ours, (theirs, stdout) = None, os.pipe()
        if isinstance(given, Path):
            stdin = os.open(given, os.O_RDONLY)
        else:
            stdin, ours = os.pipe()
        process = start(
            arguments,
            folder=folder,
            environment=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=err.fileno(),
        )
        os.close(stdin)
        os.close(stdout)
        if ours is not None:
            with os.fdopen(ours, "w") as pipe:
                pipe.write(str(given))
        with os.fdopen(theirs, "rb") as pipe:
            out = pipe.read(-1 if read is None else read)
        process.join()
        assert process.exitcode is not None
        err.seek(0)
        return Ended(process.exitcode, out.decode(errors="replace"), err.read().decode())
