"""What Python imports first in a process whose attn is to think that it runs on Windows.

What attn imports of os and signal lacks what only Unix has, and fcntl, resource and termios are not there.
A file that is open can be neither removed nor renamed by attn, and msvcrt locks its bytes. Other packages,
which ask `sys.platform`, keep the system that there is.
"""

import builtins
import errno
import fcntl
import io
import os
import signal
import sys
from types import ModuleType
from typing import Any

GONE = (
    *(
        "fork",
        "register_at_fork",
        "pread",
        "pwrite",
        "posix_",
        "geteuid",
        "getuid",
        "getgid",
        "getegid",
        "wait",
    ),
    *(
        "getpgid",
        "setsid",
        "sched_",
        "sysconf",
        "set_blocking",
        "mkfifo",
        "statvfs",
        "uname",
        "killpg",
        "memfd_",
    ),
    *("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "O_SYNC", "O_DIRECT", "O_PATH", "O_TMPFILE"),
    *(
        "eventfd",
        "timerfd",
        "pidfd_",
        "splice",
        "WNOHANG",
        "WUNTRACED",
        "chown",
        "fchown",
        "fchmod",
        "chroot",
    ),
    *("nice", "getloadavg", "process_cpu_count", "copy_file_range"),
)
SIGNALS = (
    *("SIGHUP", "SIGQUIT", "SIGKILL", "SIGSTOP", "SIGTSTP", "SIGCONT", "SIGPIPE", "SIGALRM", "SIGUSR1"),
    *("SIGUSR2", "SIGWINCH", "SIGCHLD", "SIGTTIN", "SIGTTOU", "pthread_kill", "sigtimedwait", "setitimer"),
)
MISSING = ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog")


def without(module: ModuleType, gone: tuple[str, ...]) -> ModuleType:
    """A copy of a module without what begins so."""
    copy = ModuleType(module.__name__)
    vars(copy).update({name: part for name, part in vars(module).items() if not name.startswith(gone)})
    return copy


def is_open(path: Any) -> bool:
    """Whether this process has a file open."""
    wanted = os.path.realpath(os.fsdecode(path))
    for number in listed("/proc/self/fd"):
        try:
            if read_link(f"/proc/self/fd/{number}") == wanted:
                return True
        except OSError:
            continue
    return False


def asked_by_attn() -> bool:
    """Whether attn calls, or pathlib for it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "pathlib":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("attncli")


def unless_open(function: Any) -> Any:
    """A function of os, which fails for a file that is open."""

    def call(path: Any, *others: Any, **options: Any) -> Any:
        if asked_by_attn() and is_open(path):
            raise PermissionError(errno.EACCES, "used by another process", os.fsdecode(path))
        return function(path, *others, **options)

    return call


def locking(file: int, mode: int, count: int) -> None:
    """msvcrt's, of so many bytes from the place in the file."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, count, os.lseek(file, 0, os.SEEK_CUR))
    except BlockingIOError:
        raise OSError(errno.EACCES, "locked") from None


def without_system_files(function: Any) -> Any:
    """A function that opens or looks at files, for which /proc and /sys are not there."""

    def call(path: Any, *others: Any, **options: Any) -> Any:
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *others, **options)

    return call


listed, read_link = os.listdir, os.readlink
builtins.open = io.open = without_system_files(io.open)
for _name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, _name, without_system_files(getattr(os, _name)))
for _name in ("unlink", "remove", "rename", "replace"):
    setattr(os, _name, unless_open(getattr(os, _name)))
MSVCRT: Any = ModuleType("msvcrt")
MSVCRT.locking, MSVCRT.LK_NBLCK = locking, 2
PRETENDED = {"os": without(os, GONE), "signal": without(signal, SIGNALS), "msvcrt": MSVCRT}
imported = builtins.__import__


def import_as_on_windows(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> ModuleType:
    """Python's own, but for what attn imports of the system."""
    if str((globals or {}).get("__name__")).startswith("attncli") and level == 0:
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in PRETENDED:
            return PRETENDED[name]
    module: ModuleType = imported(name, globals, locals, fromlist, level)
    return module


builtins.__import__ = import_as_on_windows
