"""A process of `attn` in a tenth of a second: the fork of one that has imported torch and transformers.

Streams, signals, exit codes and terminals are those of any process. What happens while Python starts or
imports something is another matter: tests of that start `python -m attncli`.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from tests.conftest import Ended
from tools.refresh_outputs import start_attn


def run_attn(
    arguments: Sequence[str],
    *,
    given: str = "",
    read: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Ended:
    """What a process answers between two pipes: its standard input has the text `given`.

    Whoever reads its standard output closes the pipe after `read` bytes.
    """
    with TemporaryFile() as err:
        (stdin, ours), (theirs, stdout) = os.pipe(), os.pipe()
        process = start_attn(
            arguments,
            folder=folder or Path.cwd(),
            environment=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=err.fileno(),
        )
        os.close(stdin)
        os.close(stdout)
        with os.fdopen(ours, "w") as pipe:
            pipe.write(given)
        with os.fdopen(theirs, "rb") as pipe:
            out = pipe.read(-1 if read is None else read)
        process.join()
        assert process.exitcode is not None
        err.seek(0)
        return Ended(process.exitcode, out.decode(errors="replace"), err.read().decode())
