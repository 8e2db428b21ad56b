"""Run independent jobs on Python threads, with one torch thread each."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import torch

Job = Callable[[], None]


@contextmanager
def _one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_jobs(jobs: Sequence[Job], num_threads: int, finished: Callable[[], None]) -> None:
    """Run every job; call `finished` in the calling thread after each.

    Torch releases the interpreter's lock in each operation, so threads over blocks keep the cores busy
    where torch's own threads, which split every small operation, do not. An exception, Ctrl-C
    included, drops the jobs that have not begun and leaves once the running ones (milliseconds) end.
    """
    if num_threads == 1:
        for job in jobs:
            job()
            finished()
        return
    with _one_torch_thread(), ThreadPoolExecutor(num_threads) as pool:
        try:
            for future in as_completed([pool.submit(job) for job in jobs]):
                future.result()
                finished()
        finally:
            pool.shutdown(cancel_futures=True)
