"""Independent jobs on Python threads, with one torch thread each."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch

Found = TypeVar("Found")

_before: list[int] = []
_lock = Lock()


@contextmanager
def without_torch_threads() -> Iterator[int]:
    """One torch thread while the with-block runs; yields how many there were.

    A torch thread spins for milliseconds after its work, on a core that the jobs need. The number is one for
    the whole process: of blocks that run at the same time the first finds it, and each sets it again.
    """
    with _lock:
        before = _before[0] if _before else torch.get_num_threads()
        _before.append(before)
    try:
        torch.set_num_threads(1)
        yield before
    finally:
        torch.set_num_threads(before)
        with _lock:
            _before.pop()


def run_jobs(jobs: Sequence[Callable[[], Found]], num_threads: int) -> Iterator[Found]:
    """What the jobs return, in their order; they run in this thread, between two results, and in others.

    Torch releases the interpreter's lock in each operation, so threads over blocks keep the cores busy
    where torch's own threads, which split every small operation, do not. An exception, Ctrl-C
    included, drops the jobs that have not begun and leaves once the running ones (milliseconds) end.
    """
    num_others = min(num_threads, len(jobs)) - 1
    if num_others < 1:
        yield from (job() for job in jobs)
        return
    waiting = deque(enumerate(jobs))
    found: dict[int, Found] = {}
    is_inference = torch.is_inference_mode_enabled()  # of this thread alone, as is no_grad

    def run_next() -> bool:
        try:
            number, job = waiting.popleft()
        except IndexError:
            return False
        found[number] = job()
        return True

    def run_all() -> None:
        try:
            with torch.no_grad(), torch.inference_mode(is_inference):
                while run_next():
                    pass
        except BaseException:
            waiting.clear()
            raise

    with ThreadPoolExecutor(num_others) as pool:
        try:
            others = [pool.submit(run_all) for _ in range(num_others)]
            next_number = 0
            while run_next():
                while next_number in found:
                    yield found.pop(next_number)
                    next_number += 1
            for other in others:
                other.result()
        finally:
            waiting.clear()
    for number in range(next_number, len(jobs)):
        yield found.pop(number)
