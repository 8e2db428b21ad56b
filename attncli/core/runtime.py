"""The environment that attn runs in: compiled libraries, torch's threads, and damaged packages.

This module imports torch only inside functions. The libraries of the C sources are built when attn is
installed, if a compiler exists (hatch_build.py). Their names contain digests of their sources, so that only
matching versions are loaded.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path

TILE_PASS, FEW_ROWS = (Path(__file__).with_name(name) for name in ("tile_pass.c", "few_rows.c"))
SWITCH = "ATTN_COMPILED"
"""The environment variable that disables compiled code if set to 0."""


def library_name(source: Path) -> str:
    """The file name of the library built from this source."""
    return f"{source.stem}-{sha256(source.read_bytes()).hexdigest()[:12]}.so"


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """Load the library built from a source; None if it was not built, does not load, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(source.with_name(library_name(source))))
    except OSError:
        return None


def tile_pass() -> ctypes.CDLL | None:
    """The library of the pass over tiles, or None if torch computes the pass."""
    return library(TILE_PASS)


def tile_pass_in_use() -> str:
    """The implementation of long rows on the CPU: `compiled` or `torch`."""
    return "torch" if tile_pass() is None else "compiled"


def versions() -> dict[str, str]:
    """The versions of attn and torch, and the implementation of long rows on the CPU."""
    import torch

    from attncli.system.version import __version__

    return {"attncli": __version__, "torch": str(torch.__version__), "tile_pass": tile_pass_in_use()}


VARIABLE = "OMP_NUM_THREADS"
"""The variable for the number of torch's threads, which slow down small runs, most on a busy machine."""
SPINNING = "GOMP_SPINCOUNT"
SPINS = 20_000
"""The number of rounds (half a millisecond) that an idle torch thread spins; GNU's default is 300,000."""
STATUS = Path("/proc/stat")
SECONDS = 0.5
"""The number of seconds over which idle cores are counted before the number of threads is adjusted."""


def limit_spinning() -> None:
    """Let idle torch threads give up their cores soon, unless the environment sets how they wait.

    In measurements this costs nothing on idle cores; on busy cores, SmolLM2 runs 500 tokens five times as
    fast. GNU's OpenMP reads the variable once, when it is loaded: it is loaded here, from torch's folder, so
    that no child process inherits the variable. Does nothing once torch is imported.
    """
    if "torch" in sys.modules or os.environ.keys() & {SPINNING, "OMP_WAIT_POLICY"}:
        return
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return
    folder = Path(torch.origin).parent
    os.environ[SPINNING] = str(SPINS)
    try:
        for library in (*folder.glob("lib/libgomp*.so*"), *folder.parent.glob("torch.libs/libgomp*.so*")):
            ctypes.CDLL(str(library))
    finally:
        del os.environ[SPINNING]


@cache
def _torch_library() -> ctypes.CDLL:
    """Find torch's shared library, which contains its OpenMP and MKL."""
    import torch

    return ctypes.CDLL(torch._C.__file__)


def set_torch_threads(number: int, mkl_threads: int | None = None) -> int:
    """Set the number of torch threads for the calling thread, and return MKL's previous number.

    torch.set_num_threads would also apply to every thread that begins later, including the caller's. OpenMP
    and MKL keep a number per thread (MKL's number is 0 if MKL follows OpenMP); a torch built without them is
    left unchanged.
    """
    import torch

    torch.get_num_threads()  # torch sets a thread's number at its first call, so call it first
    library = _torch_library()
    if hasattr(library, "omp_set_num_threads"):
        library.omp_set_num_threads(number)
    has_mkl = hasattr(library, "MKL_Set_Num_Threads_Local")
    return library.MKL_Set_Num_Threads_Local(number if mkl_threads is None else mkl_threads) if has_mkl else 0


@contextmanager
def torch_threads(number: int) -> Iterator[int]:
    """Use this number of torch threads in this thread inside the with-block; yield the previous number.

    With one thread, no idle torch thread spins for milliseconds on a core that the jobs need.
    """
    import torch

    before = torch.get_num_threads()
    mkl_threads = set_torch_threads(number)
    try:
        yield before
    finally:
        set_torch_threads(before, mkl_threads)


def remove_empty_compiler_folder() -> None:
    """Remove the folder for compiled code that torch creates when transformers imports it, if it is empty.

    Torch recreates it when needed. A folder that the user has set stays.
    """
    from tempfile import gettempdir  # its import takes half as long as all that `attn --help` needs

    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if folder.parent == Path(gettempdir()) and folder.name.startswith("torchinductor_"):
        with suppress(OSError):  # the folder is not empty, or belongs to another user
            folder.rmdir()


_forked: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forked.append(True))


def threads_that_run() -> AbstractContextManager[object]:
    """Use one torch thread in a forked process; leave the number unchanged in any other process.

    In the child of a fork, GNU's OpenMP waits forever for the threads of its parent.
    """
    return torch_threads(1) if _forked else nullcontext()


@contextmanager
def without_autocast() -> Iterator[None]:
    """Turn off the caller's autocast on every device inside the block: autocast would change the numbers."""
    import torch

    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with ExitStack() as opened:
        for kind in kinds:
            opened.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Use one torch thread for this thread's work, unless OMP_NUM_THREADS is set.

    Does not import torch, which reads this variable when it is imported.
    """
    with ExitStack() as afterwards:
        if VARIABLE in os.environ:
            pass
        elif "torch" in sys.modules:
            afterwards.enter_context(torch_threads(1))
        else:
            afterwards.callback(os.environ.pop, VARIABLE)
            os.environ[VARIABLE] = "1"
        yield


class IdleCores:
    """The number of idle cores over the last half second or longer; NaN if the system does not report it."""

    def __init__(self) -> None:
        self._mark = time.monotonic(), _busy_seconds(), time.process_time()
        self._count = 1.0

    def count(self) -> float:
        """Count the idle cores since the last count; return 1 until half a second has passed."""
        began, busy, process_seconds = self._mark
        passed = time.monotonic() - began
        if passed >= SECONDS:
            self._mark = time.monotonic(), _busy_seconds(), time.process_time()
            busy_elsewhere = (self._mark[1] - busy) - (self._mark[2] - process_seconds)
            self._count = (os.cpu_count() or 1) - busy_elsewhere / max(passed, 1e-9)
        return self._count


@contextmanager
def idle_core_threads() -> Iterator[Callable[[], None]]:
    """Use as many torch threads as cores are idle, unless OMP_NUM_THREADS is set.

    Call the yielded function between two products to count the idle cores again. A thread that waits for a
    core delays all others, so a single thread is several times as fast on busy cores.
    """
    import torch

    most = torch.get_num_threads()
    if VARIABLE in os.environ or most == 1 or isnan(idle_cores.count()):
        yield lambda: None
        return

    def adapt() -> None:
        set_torch_threads(max(1, min(most, round(idle_cores.count()))))

    with torch_threads(1):
        adapt()
        yield adapt


def _busy_seconds() -> float:
    """The number of seconds that all cores have worked since the machine started; NaN if not reported."""
    try:
        first_line = STATUS.read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:  # macOS has no such file
        return nan
    user, nice, system, _idle, _waiting, *interrupts = map(int, first_line.split()[1:])
    # The last two, for guests, are already included in user and nice.
    return float(user + nice + system + sum(interrupts[:3])) / os.sysconf("SC_CLK_TCK")


idle_cores = IdleCores()
"""Created at import, because the first imports take long enough for a count."""


def package_with_damaged_metadata(error: Exception) -> str | None:
    """The package whose broken entry points stop the import of torch, or None if there is no such package."""
    from importlib import metadata

    raised = error.__traceback__
    while raised is not None and raised.tb_frame.f_code.co_filename != metadata.__file__:
        raised = raised.tb_next
    for package in metadata.distributions() if raised is not None else ():
        try:
            package.entry_points  # noqa: B018 - it reads the file
        except Exception:  # damaged metadata may raise any error
            return f"{package.name} {package.version}"
    return None
