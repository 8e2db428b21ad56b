"""torch's own threads, which cost more than they give on many small runs, above all on a busy machine."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "OMP_NUM_THREADS"


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Give torch one thread in this process, unless OMP_NUM_THREADS says how many.

    torch is not imported for it: it reads the variable when it is.
    """
    if VARIABLE in os.environ:
        yield
        return
    torch = sys.modules.get("torch")
    if torch is None:
        os.environ[VARIABLE] = "1"
        try:
            yield
        finally:
            del os.environ[VARIABLE]
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
