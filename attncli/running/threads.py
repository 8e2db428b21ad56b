"""torch's own threads, which cost more than they give on many small runs, above all on a busy machine."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

VARIABLE = "OMP_NUM_THREADS"
STATUS = Path("/proc/stat")
SECONDS = 0.5
"""How long cores are watched before threads follow."""


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread in this process, unless OMP_NUM_THREADS says how many.

    torch is not imported for it: it reads the variable when it is.
    """
    with ExitStack() as afterwards:
        if VARIABLE in os.environ:
            pass
        elif torch := sys.modules.get("torch"):
            afterwards.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        else:
            afterwards.callback(os.environ.pop, VARIABLE)
            os.environ[VARIABLE] = "1"
        yield


@contextmanager
def threads_of_idle_cores() -> Iterator[Callable[[], None]]:
    """As many torch threads as cores are idle, one to begin with, unless OMP_NUM_THREADS says how many.

    What is given looks anew, and is to be called between two products. A thread that waits for a core keeps
    all others waiting, so that on busy cores one alone is several times as fast.
    """
    import torch

    most = torch.get_num_threads()
    if VARIABLE in os.environ or most == 1 or not STATUS.exists():
        yield lambda: None
        return
    began, busy, own = time.monotonic(), _busy_seconds(), time.process_time()

    def look() -> None:
        nonlocal began, busy, own
        passed = time.monotonic() - began
        if passed < SECONDS:
            return
        of_others = (_busy_seconds() - busy) - (time.process_time() - own)
        began, busy, own = time.monotonic(), _busy_seconds(), time.process_time()
        idle = (os.cpu_count() or 1) - of_others / passed
        torch.set_num_threads(max(1, min(most, round(idle))))

    try:
        torch.set_num_threads(1)
        yield look
    finally:
        torch.set_num_threads(most)


def _busy_seconds() -> float:
    """Seconds that all cores have worked since the machine started."""
    user, nice, system, _idle, _waiting, *interrupts = map(
        int, STATUS.read_text().split("\n", 1)[0].split()[1:]
    )
    # The last two, of guests, are in user and nice already.
    return float(user + nice + system + sum(interrupts[:3])) / os.sysconf("SC_CLK_TCK")
