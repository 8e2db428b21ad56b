"""Differences between Linux and macOS: file locks, limits, memory, reading ahead, interrupts.

This module imports almost nothing.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MINIMUM_BYTES = 2**31
"""The assumed memory of the machine if the system does not report it."""


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from the processes started inside the block; this process receives it after the block."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it starts a process and then unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def lock_file(file: int, *, shared: bool = False) -> None:
    """Lock an open file until it is closed.

    Raises BlockingIOError if another process has locked it, and OSError on a file system without locks.
    """
    import fcntl

    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def read_ahead(file: int, offset: int, size: int) -> None:
    """Tell the system that these bytes will be read soon, if the system supports such advice."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


def is_readable_within(file: int, seconds: float | None) -> bool:
    """Return True if a file or pipe has bytes to read or ends within this many seconds (None: no limit)."""
    return bool(select.select([file], [], [], seconds)[0])


def usable_cores() -> int:
    """Return the number of cores that this process may use: all cores on macOS, which has no such limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> int | None:
    """Return the bytes of address space that the process may take, or None if there is no limit."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def memory_taken() -> int | None:
    """Return the bytes of address space that the process takes; None on macOS, which does not report it."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def machine_memory() -> int:
    """Return the machine's memory in bytes, or `MINIMUM_BYTES` if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return MINIMUM_BYTES


def limit_memory(more: int) -> None:
    """Let this process, a forked child, take `more` additional bytes, and leave no core file if aborted."""
    import resource

    taken = memory_taken()
    if taken is not None:
        most, hard = taken + more, resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_processor_time(seconds: float) -> None:
    """End this process, a forked child, with SIGXCPU after this much processor time."""
    import resource
    from math import ceil

    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def is_alive(process: int) -> bool:
    """Return True if a process with this number exists, whichever user runs it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def terminal_size(file: int) -> os.terminal_size:
    """Return the numbers of a terminal's columns (80 if unknown) and lines (0 if unknown)."""
    try:
        columns, lines = os.get_terminal_size(file)
    except OSError:
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines))
