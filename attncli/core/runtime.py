"""What attn finds where it runs: compiled loops, torch's threads, damaged packages.

A leaf without torch. The libraries of the C sources are built when attn is installed, where a compiler exists
(hatch_build.py); their names have the digests of their sources, so that only matching versions are loaded.
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
"""The environment variable that, set to 0, leaves everything to torch."""


def library_name(source: Path) -> str:
    """What the library of this source is called."""
    return f"{source.stem}-{sha256(source.read_bytes()).hexdigest()[:12]}.so"


@cache
def library(source: Path) -> ctypes.CDLL | None:
    """The library of a source; None where it was not built, does not load, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(source.with_name(library_name(source))))
    except OSError:
        return None


def tile_pass() -> ctypes.CDLL | None:
    """The library of the pass over tiles; None where torch computes it."""
    return library(TILE_PASS)


def tile_pass_in_use() -> str:
    """`compiled` or `torch`: what computes long rows on the CPU."""
    return "torch" if tile_pass() is None else "compiled"


def versions() -> dict[str, str]:
    """Versions of attn and torch, and which implementation computes long rows on the CPU."""
    import torch

    from attncli.system.version import __version__

    return {"attncli": __version__, "torch": str(torch.__version__), "tile_pass": tile_pass_in_use()}


VARIABLE = "OMP_NUM_THREADS"
"""The number of torch's threads, which slow down many small runs, above all on a busy machine."""
SPINNING = "GOMP_SPINCOUNT"
SPINS = 20_000
"""Rounds (half a millisecond) that a torch thread without work keeps its core; GNU's default is 300,000."""
STATUS = Path("/proc/stat")
SECONDS = 0.5
"""How long cores are watched before the number of threads follows."""


def limit_spinning() -> None:
    """Let torch's threads give up their cores soon, unless the environment says how they wait.

    Measured: no loss on idle cores; on busy ones 500 tokens run through SmolLM2 five times as fast. GNU's
    OpenMP reads the variable once, when it is loaded: it is loaded here, from where torch has it, so that
    no child inherits the variable. Once torch is imported it is too late.
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
    """torch's shared library, which holds the OpenMP and the MKL that it computes with."""
    import torch

    return ctypes.CDLL(torch._C.__file__)


def set_torch_threads(number: int, of_mkl: int | None = None) -> int:
    """So many torch threads for what the calling thread computes from here on; gives what MKL had before.

    torch.set_num_threads would also say how many every thread gets that begins later, a user's as well.
    OpenMP and MKL keep a number for each thread (MKL's is 0 where it follows OpenMP's); a torch that was
    built without them is left as it is.
    """
    import torch

    torch.get_num_threads()  # torch gives a thread its number when it is first asked: not after this
    library = _torch_library()
    if hasattr(library, "omp_set_num_threads"):
        library.omp_set_num_threads(number)
    has_mkl = hasattr(library, "MKL_Set_Num_Threads_Local")
    return library.MKL_Set_Num_Threads_Local(number if of_mkl is None else of_mkl) if has_mkl else 0


@contextmanager
def torch_threads(number: int) -> Iterator[int]:
    """So many torch threads for this thread while the with-block runs; yields how many there were.

    With one, no torch thread spins for milliseconds after its work, on a core that the jobs need.
    """
    import torch

    before = torch.get_num_threads()
    of_mkl = set_torch_threads(number)
    try:
        yield before
    finally:
        set_torch_threads(before, of_mkl)


def remove_empty_compiler_folder() -> None:
    """Remove the folder of compiled code that torch makes when transformers imports it, where it is empty.

    Torch makes it again when it needs it. A folder that the user has named stays.
    """
    from tempfile import gettempdir  # half as long to import as all that `attn --help` needs

    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
    if folder.parent == Path(gettempdir()) and folder.name.startswith("torchinductor_"):
        with suppress(OSError):  # it has something in it, or is another user's
            folder.rmdir()


_forked: list[bool] = []
os.register_at_fork(after_in_child=lambda: _forked.append(True))


def threads_that_run() -> AbstractContextManager[object]:
    """One torch thread in a process that was forked, else those that there are.

    GNU's OpenMP waits in the child of a fork for the threads of its parent, for ever.
    """
    return torch_threads(1) if _forked else nullcontext()


@contextmanager
def without_autocast() -> Iterator[None]:
    """While it is open a caller's autocast, with which numbers would be others, waits on every device."""
    import torch

    kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with ExitStack() as opened:
        for kind in kinds:
            opened.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread for what this thread computes, unless OMP_NUM_THREADS says how many.

    torch is not imported for this: it reads the variable when it is imported.
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
    """How many cores are idle, over the last half second or more; NaN where the system does not say."""

    def __init__(self) -> None:
        self._mark = time.monotonic(), _busy_seconds(), time.process_time()
        self._count = 1.0

    def count(self) -> float:
        """The cores that were idle since the last count; 1 until half a second has passed."""
        began, busy, own_seconds = self._mark
        passed = time.monotonic() - began
        if passed >= SECONDS:
            self._mark = time.monotonic(), _busy_seconds(), time.process_time()
            of_others = (self._mark[1] - busy) - (self._mark[2] - own_seconds)
            self._count = (os.cpu_count() or 1) - of_others / max(passed, 1e-9)
        return self._count


@contextmanager
def threads_of_idle_cores() -> Iterator[Callable[[], None]]:
    """As many torch threads as cores are idle, unless OMP_NUM_THREADS says how many.

    Call what it yields between two products, to count the idle cores again. A thread that waits for a core
    keeps all others waiting, so that one thread is several times as fast on busy cores.
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
    """Seconds that all cores have worked since the machine started; NaN where the system does not say."""
    try:
        first_line = STATUS.read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:  # macOS has no such file
        return nan
    user, nice, system, _idle, _waiting, *interrupts = map(int, first_line.split()[1:])
    # The last two, for guests, are already in user and nice.
    return float(user + nice + system + sum(interrupts[:3])) / os.sysconf("SC_CLK_TCK")


idle_cores = IdleCores()
"""Counted from here on: the first imports take long enough for a count."""


def package_with_damaged_metadata(error: Exception) -> str | None:
    """The package whose broken entry points stop the import of torch, which reads those of all; or None."""
    from importlib import metadata

    raised = error.__traceback__
    while raised is not None and raised.tb_frame.f_code.co_filename != metadata.__file__:
        raised = raised.tb_next
    for package in metadata.distributions() if raised is not None else ():
        try:
            package.entry_points  # noqa: B018 - it reads the file
        except Exception:  # damaged metadata may fail in any way
            return f"{package.name} {package.version}"
    return None
