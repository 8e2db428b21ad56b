"""Third-party code (templates, tokenizers), run in a separate process with limits."""

import faulthandler
import os
import select
import signal
import traceback
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

from attncli.core.process import quiet_warnings
from attncli.errors import readable_bytes
from attncli.system.platforms import limit_memory, limit_processor_time

MADE = "\x02"
"""Written before a result, to distinguish the result from an error message."""
MOST_SECONDS, MOST_MEMORY, PIPE_BYTES, MOST_ANSWER = 5.0, 512 * 2**20, 2**20, 128 * 2**20
WAITING = 2
"""Seconds of wall-clock time that a process may take per second of processor time."""


def made_in_child(
    make: Callable[[], str],
    *,
    most_memory: int = MOST_MEMORY,
    most_seconds: float | None = None,
    is_quiet: bool = False,
) -> str:
    """Return the result of a function run in a separate process, with limits on its time and memory.

    `most_seconds` limits processor time, so that a busy machine rarely causes errors; the wall-clock limit is
    twice as long. Raises ValueError with a one-line reason if a limit is reached or the function raises
    ValueError. A quiet process writes nothing to standard error, where Rust would write if it ran out of
    memory.
    """
    most_seconds = MOST_SECONDS if most_seconds is None else most_seconds
    reading, writing = os.pipe()
    with quiet_warnings():  # about threads that may hold a lock; the code below takes only Python's locks
        process = os.fork()
    if not process:
        os.close(reading)
        _make(make, writing, most_memory, most_seconds, is_quiet=is_quiet)
    os.close(writing)
    answer = _answer(reading, process, most_memory, most_seconds)
    if not answer.startswith(MADE):
        raise ValueError(answer)
    return answer.removeprefix(MADE)


def _make(
    make: Callable[[], str], writing: int, most_memory: int, most_seconds: float, *, is_quiet: bool
) -> NoReturn:
    """Write the result after a mark, or a one-line error, and end this process."""
    code = 1
    try:
        if is_quiet:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        limit_memory(most_memory)
        limit_processor_time(most_seconds)
        try:
            written = f"{MADE}{make()}".encode("utf-8", "surrogatepass")
        except MemoryError:
            written = _too_much(most_memory).encode()
        except ValueError as error:
            written = str(error).encode("utf-8", "surrogatepass")
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(written)
        code = 0
    except BaseException:  # a bug: the waiting process reports it
        traceback.print_exc()
    os._exit(code)


def _too_much(most_memory: int) -> str:
    return f"it needs more than {readable_bytes(most_memory)} of memory"


def _answer(reading: int, process: int, most_memory: int, most_seconds: float) -> str:
    """Return what a process writes until it ends; it is killed if it takes too long or writes too much."""
    parts: list[bytes] = []
    end = monotonic() + WAITING * most_seconds
    is_done = False
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        try:
            while not is_done and select.select([pipe], [], [], max(0.0, end - monotonic()))[0]:
                parts.append(pipe.read(PIPE_BYTES))
                is_done = not parts[-1]
                if sum(map(len, parts)) > MOST_ANSWER:
                    break
        finally:
            if not is_done:
                os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if not is_done:
        is_late = monotonic() >= end
        return f"it takes more than {most_seconds:g} s" if is_late else _too_much(MOST_ANSWER)
    if code == -signal.SIGXCPU:
        return f"it takes more than {most_seconds:g} s"
    if code == -signal.SIGABRT:
        return _too_much(most_memory)
    assert code != 1, "it failed: its traceback is above"
    return b"".join(parts).decode("utf-8", "surrogatepass") or f"it crashed its process (exit code {code})"
