"""What Python imports first in a process whose attn is to think that it runs on Windows.

What attn imports of os and signal lacks what only Unix has, and fcntl, resource and termios are not there.
A file that is open can be neither removed nor replaced by attn, nor renamed to what there is; msvcrt locks
its bytes; pipes cannot be selected. Other packages, which ask `sys.platform`, keep the system that there is.
"""

import array
import builtins
import ctypes
import errno
import fcntl
import importlib.util
import io
import os
import select
import signal
import stat
import sys
import termios
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

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
    *("SIGUSR2", "SIGWINCH", "SIGCHLD", "SIGTTIN", "SIGTTOU", "pthread_", "sigtimedwait", "setitimer"),
    *("SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "sigpending", "sigwait", "siginterrupt", "alarm", "pause"),
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
    """A function of os, which fails for a file that is open, or that would be in the place of such a one."""

    def call(*paths: Any, **options: Any) -> Any:
        if asked_by_attn():
            for path in paths:
                if is_open(path):
                    raise PermissionError(errno.EACCES, "used by another process", os.fsdecode(path))
            if function is rename and os.path.lexists(paths[1]):
                raise FileExistsError(errno.EEXIST, "there is such a file", os.fsdecode(paths[1]))
        return function(*paths, **options)

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


def select_sockets(*_: Any) -> Any:
    """select's, of anything but sockets."""
    raise OSError(errno.ENOTSOCK, "an operation was attempted on something that is not a socket")


class Kernel32:
    """What attn calls of it; handles are the numbers of files here."""

    modes: ClassVar = {1: 3, 2: 3}
    """Of the consoles; 4 more where they follow escape sequences."""

    def PeekNamedPipe(
        self, pipe: Any, _buffer: None, _size: int, _read: None, count: Any, _left: None
    ) -> bool:
        """How many bytes wait in a pipe; False for other files, and at its end."""
        file = pipe.value or 0
        waiting = array.array("i", [0])
        if not stat.S_ISFIFO(os.fstat(file).st_mode):
            return False
        fcntl.ioctl(file, termios.FIONREAD, waiting)
        poll = select.poll()
        poll.register(file, 0)
        has_ended = any(events & select.POLLHUP for _, events in poll.poll(0))
        count._obj.value = waiting[0]
        return bool(waiting[0]) or not has_ended

    def GetConsoleMode(self, console: Any, mode: Any) -> bool:
        """Of a standard stream."""
        mode._obj.value = self.modes[console.value]
        return True

    def SetConsoleMode(self, console: Any, mode: int) -> bool:
        """Of a standard stream."""
        self.modes[console.value] = mode
        return True

    def GlobalMemoryStatusEx(self, status: Any) -> bool:
        """4 GiB are free."""
        assert status._obj[0] == 64
        status._obj[2] = 2**32
        return True


def find_spec(name: str, package: str | None = None) -> Any:
    """importlib.util's."""
    return None if name in MISSING else importlib.util.find_spec(name, package)


listed, read_link, rename = os.listdir, os.readlink, os.rename
builtins.open = io.open = without_system_files(io.open)
for _name in ("open", "stat", "lstat", "listdir", "scandir", "readlink"):
    setattr(os, _name, without_system_files(getattr(os, _name)))
for _name in ("unlink", "remove", "rename", "replace"):
    setattr(os, _name, unless_open(getattr(os, _name)))
MSVCRT: Any = ModuleType("msvcrt")
MSVCRT.locking, MSVCRT.LK_NBLCK, MSVCRT.get_osfhandle = locking, 2, int
CTYPES = without(ctypes, ())
vars(CTYPES).update(windll=SimpleNamespace(kernel32=Kernel32()))
SELECT: Any = ModuleType("select")
SELECT.select = select_sockets
UTIL = without(importlib.util, ("find_spec",))
vars(UTIL).update(find_spec=find_spec)
PRETENDED = {
    **{"os": without(os, GONE), "signal": without(signal, SIGNALS), "select": SELECT},
    **{"importlib.util": UTIL, "msvcrt": MSVCRT, "ctypes": CTYPES},
}
vars(PRETENDED["os"]).update(name="nt", sep="\\", altsep="/")
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
