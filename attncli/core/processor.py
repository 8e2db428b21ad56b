"""What computes on the CPU: the pass over tiles in C, and torch's own threads.

A leaf without torch. The library of the pass is built when attn is installed, where there is a compiler
(hatch_build.py); its name has the digest of its source, so that none of another version is ever loaded.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path

SOURCE = Path(__file__).with_name("tile_pass.c")
SWITCH = "ATTN_COMPILED"
"""The environment variable that, set to 0, leaves everything to torch."""


def library_name() -> str:
    """What the library of this source is called."""
    return f"tile_pass-{sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"


@cache
def tile_pass() -> ctypes.CDLL | None:
    """The library; None where it was not built, does not load, or is switched off."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(SOURCE.with_name(library_name())))
    except OSError:
        return None


def tile_pass_in_use() -> str:
    """`compiled` or `torch`: what computes long rows on the CPU."""
    return "torch" if tile_pass() is None else "compiled"


VARIABLE = "OMP_NUM_THREADS"
"""How many threads torch has: its own slow down many small runs, above all on a busy machine."""
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
    no child inherits the variable. Once torch is there nothing can be done.
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


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread for what this thread computes, unless OMP_NUM_THREADS says how many.

    torch is not imported for this: it reads the variable when it is imported.
    """
    with ExitStack() as afterwards:
        if VARIABLE in os.environ:
            pass
        elif "torch" in sys.modules:
            from attncli.core.row_tiles import torch_threads

            afterwards.enter_context(torch_threads(1))
        else:
            afterwards.callback(os.environ.pop, VARIABLE)
            os.environ[VARIABLE] = "1"
        yield


@contextmanager
def threads_of_idle_cores() -> Iterator[Callable[[], None]]:
    """As many torch threads as cores are idle, one to begin with, unless OMP_NUM_THREADS says how many.

    Call what it yields between two products, to count the idle cores again. A thread that waits for a core
    keeps all others waiting, so that one thread is several times as fast on busy cores.
    """
    import torch

    from attncli.core.row_tiles import set_torch_threads, torch_threads

    most = torch.get_num_threads()
    began, busy, own = time.monotonic(), _busy_seconds(), time.process_time()
    if VARIABLE in os.environ or most == 1 or isnan(busy):
        yield lambda: None
        return

    def adapt() -> None:
        nonlocal began, busy, own
        passed = time.monotonic() - began
        if passed < SECONDS:
            return
        of_others = (_busy_seconds() - busy) - (time.process_time() - own)
        began, busy, own = time.monotonic(), _busy_seconds(), time.process_time()
        idle = (os.cpu_count() or 1) - of_others / passed
        set_torch_threads(max(1, min(most, round(idle))))

    with torch_threads(1):
        yield adapt


def _busy_seconds() -> float:
    """Seconds that all cores have worked since the machine started; NaN where the system does not say."""
    try:
        first_line = STATUS.read_text().split("\n", 1)[0]
    except OSError:  # macOS has no such file
        return nan
    user, nice, system, _idle, _waiting, *interrupts = map(int, first_line.split()[1:])
    # The last two, for guests, are already in user and nice.
    return float(user + nice + system + sum(interrupts[:3])) / os.sysconf("SC_CLK_TCK")
