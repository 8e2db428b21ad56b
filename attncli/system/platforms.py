"""What some systems lack, Windows above all, behind one door: forks, locks, limits, reads at a place.

A leaf, which imports next to nothing. Nothing here was tried on a real Windows: tests pretend one.
"""

import errno
import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import Any

CAN_FORK = hasattr(os, "fork")
SIGXCPU: int = getattr(signal, "SIGXCPU", 0)
"""The signal that ends a process after its processor time; 0 on systems without it."""
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
"""How a file is opened, so that a link in its place is an error; without waiting, where it is a pipe."""
NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)
PRIVATE: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0) | getattr(os, "O_BINARY", 0)
"""As bytes, and closed in other programs that are started."""
OF_LOCK = 2**30
"""Where Windows locks a byte: what it has locked nobody reads, so it is none of the file's own."""
SEPARATORS = tuple({"/", os.sep})
"""What ends the name of a folder."""
MINIMUM_BYTES = 2**31
"""What is taken as the machine's memory where the system does not say."""


def at_fork(
    *,
    before: Callable[[], None] | None = None,
    after_in_parent: Callable[[], None] | None = None,
    after_in_child: Callable[[], None] | None = None,
) -> None:
    """Call these at each fork, where there are forks."""
    if CAN_FORK:
        given = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{name: call for name, call in given.items() if call is not None})


def signals_named(*names: str) -> tuple[int, ...]:
    """Those that the system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """While it is open Ctrl-C is for this process alone: those that are started meanwhile never see it.

    Where signals cannot be blocked, they are to ignore it by `ignore_interrupts`.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it starts a process, and unblocks SIGINT then
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def ignore_interrupts() -> None:
    """In a process that was started under `interrupts_blocked`: Ctrl-C is not for it."""
    if not hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def lock_file(file: int, *, shared: bool = False) -> None:
    """Lock an open file until it is closed; BlockingIOError where another process has locked it.

    OSError on file systems without locks. Where the system has no shared locks it is a lock like any other.
    """
    try:
        import fcntl
    except ImportError:
        _lock_byte(file)
        return
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _lock_byte(file: int) -> None:
    import msvcrt

    place = os.lseek(file, 0, os.SEEK_CUR)
    try:
        os.lseek(file, OF_LOCK, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except OSError as error:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from error
    finally:
        os.lseek(file, place, os.SEEK_SET)


def close_and_remove(file: int, path: Path) -> None:
    """Remove an open, locked file and close it: in this order, where a file that is open may be removed.

    So nobody locks it in between; elsewhere it is closed first, and stays where another has opened it.
    """
    if CAN_FORK:
        path.unlink(missing_ok=True)
        os.close(file)
        return
    os.close(file)
    with suppress(OSError):
        path.unlink(missing_ok=True)


def close_and_rename(file: int, path: Path, target: Path) -> None:
    """Let an open, locked file take another's place, and close it, in the order of `close_and_remove`.

    What cannot be renamed is removed, and the OSError raised.
    """
    try:
        if CAN_FORK:
            path.replace(target)
        else:
            os.close(file)
            path.replace(target)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        if CAN_FORK:
            os.close(file)


_reading = Lock()


def read_at(file: int, buffer: memoryview, offset: int) -> int:
    """Fill a buffer with the bytes of a file from an offset on; how many there were."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], offset)
    with _reading:  # the place in a file is that of all threads
        os.lseek(file, offset, os.SEEK_SET)
        data = os.read(file, len(buffer))
    buffer[: len(data)] = data
    return len(data)


def read_ahead(file: int, offset: int, size: int) -> None:
    """Tell the system that these bytes will be needed; without such a call they are read later."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_BETWEEN_CHECKS = 60.0


def is_readable_within(file: int, seconds: float) -> bool:
    """Whether a file or a pipe has bytes to read, or has ended, before so many seconds have passed."""
    if CAN_FORK:
        return bool(select.select([file], [], [], seconds)[0])
    last = monotonic() + seconds  # Windows selects sockets alone
    while not _has_bytes(file):
        if monotonic() > last:
            return False
        sleep(SECONDS_BETWEEN_LOOKS)
    return True


def wait_until_readable(file: int) -> None:
    """Wait until a file or a pipe has bytes to read, or has ended."""
    while not is_readable_within(file, SECONDS_BETWEEN_CHECKS):
        pass


def _has_bytes(file: int) -> bool:
    """Whether a read would not wait: of a pipe Windows says how many bytes are in it."""
    import ctypes
    import msvcrt

    pipe = ctypes.c_void_p(msvcrt.get_osfhandle(file))  # type: ignore[attr-defined]
    count = ctypes.c_uint32()
    is_pipe = _windows().PeekNamedPipe(pipe, None, 0, None, ctypes.byref(count), None)
    return not is_pipe or count.value > 0  # no pipe, or one whose other end is closed


def wait_as_usual(file: int) -> None:
    """Let an open file that was opened without waiting wait from now on."""
    if NO_WAIT:
        os.set_blocking(file, True)


def usable_cores() -> int:
    """The cores that this process may use: all of them where the system (macOS) does not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_limit() -> int | None:
    """The bytes of address space that the process may take; None without a limit."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def memory_taken() -> int | None:
    """The bytes of address space that the process has; None where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):
        return None


def machine_memory() -> int:
    """The bytes of memory of the machine, or where that is not known a number that is surely smaller."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _memory_of_windows() or MINIMUM_BYTES


def _memory_of_windows() -> int:
    """What GlobalMemoryStatusEx says is free; 0 where there is none."""
    import ctypes

    if _windows() is None:
        return 0
    # dwLength, dwMemoryLoad, then seven numbers of 64 bits, of which the second is ullAvailPhys.
    status = (ctypes.c_uint64 * 8)()
    status[0] = ctypes.sizeof(status)
    return int(status[2]) if _windows().GlobalMemoryStatusEx(ctypes.byref(status)) else 0


def _windows() -> Any:
    """The functions of Windows' kernel32; None elsewhere."""
    import ctypes

    return getattr(getattr(ctypes, "windll", None), "kernel32", None)


def limit_memory(more: int) -> None:
    """Let this process, the child of a fork, take so many bytes more, and leave no file when aborted."""
    import resource

    taken = memory_taken()
    if taken is not None:
        most, hard = taken + more, resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def limit_processor_time(seconds: float) -> None:
    """End this process, the child of a fork, by SIGXCPU once it has computed for so many seconds."""
    import resource
    from math import ceil

    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most if hard < 0 else min(most, hard), hard))


def is_mine(about: os.stat_result) -> bool:
    """Whether a file belongs to who runs this process; where files have no such owners, each does."""
    return not hasattr(os, "geteuid") or about.st_uid == os.geteuid()


def is_alive(process: int) -> bool:
    """Whether a process with this number exists, whoever runs it; where nobody can say, it does."""
    if not CAN_FORK:  # os.kill(process, 0) would end it on Windows
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def interrupt_main_thread(thread: int, asked: signal.Signals) -> None:
    """Have the main thread handle a signal soon."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread, asked)
    else:
        signal.raise_signal(asked)


def terminal_size(file: int) -> os.terminal_size:
    """The columns of a terminal, 80 where it does not say, and its lines, 0 where it does not.

    NUL passes for a terminal on Windows, and has no size.
    """
    try:
        columns, lines = os.get_terminal_size(file)
    except OSError:
        columns, lines = 0, 0
    return os.terminal_size((columns or 80, lines))


ESCAPES_WORK = 4
"""ENABLE_VIRTUAL_TERMINAL_PROCESSING."""


def let_consoles_follow_escapes() -> None:
    """Colours, and lines that are written over, are escape sequences: consoles of Windows must be told."""
    if CAN_FORK:
        return
    import ctypes
    import msvcrt

    for file in (1, 2):
        with suppress(OSError):  # closed
            console = ctypes.c_void_p(msvcrt.get_osfhandle(file))  # type: ignore[attr-defined]
            mode = ctypes.c_uint32()
            if _windows().GetConsoleMode(console, ctypes.byref(mode)):
                _windows().SetConsoleMode(console, mode.value | ESCAPES_WORK)


def shell_line(words: Iterable[str]) -> str:
    """Words as one types them in a shell: in single quotes if they need any, on Windows in double ones."""
    import shlex
    from subprocess import list2cmdline

    return list2cmdline(words) if os.name == "nt" else shlex.join(words)


def last_part(path: str) -> str:
    """What a path ends in; nothing for the name of a folder with its separator."""
    return path.replace(os.sep, "/").rpartition("/")[2]
