"""torch's own threads, which cost more than they give on many small runs, above all on a busy machine."""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

VARIABLE = "OMP_NUM_THREADS"


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
