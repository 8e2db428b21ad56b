"""Run independent jobs on Python threads, with one torch thread each."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

Job = Callable[[], None]


@contextmanager
def without_torch_threads() -> Iterator[int]:
    """One torch thread while the with-block runs; yields how many there were.

    A torch thread spins for milliseconds after its work, on a core that the jobs need.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def run_jobs(jobs: Sequence[Job], num_threads: int, finished: Callable[[int], None]) -> None:
    """Run every job, in this thread and others; call `finished` in this thread with how many are done.

    Torch releases the interpreter's lock in each operation, so threads over blocks keep the cores busy
    where torch's own threads, which split every small operation, do not. An exception, Ctrl-C
    included, drops the jobs that have not begun and leaves once the running ones (milliseconds) end.
    """
    waiting = deque(jobs)
    done: list[Job] = []

    def work(report: Callable[[int], None] = lambda count: None) -> None:
        try:
            while waiting:
                try:
                    job = waiting.popleft()
                except IndexError:  # another thread was faster
                    return
                job()
                done.append(job)
                report(len(done))
        except BaseException:
            waiting.clear()
            raise

    num_others = min(num_threads, len(jobs)) - 1
    if num_others < 1:
        work(finished)
        return
    with ThreadPoolExecutor(num_others) as pool:
        others = [pool.submit(work) for _ in range(num_others)]
        work(finished)
        for other in others:
            other.result()
    finished(len(jobs))
