"""Independent jobs on Python threads, with one torch thread each."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Found = TypeVar("Found")


@cache
def _torch_library() -> ctypes.CDLL:
    """torch's own library, in which the OpenMP and the MKL are found that it computes with."""
    return ctypes.CDLL(torch._C.__file__)


def set_torch_threads(number: int, of_mkl: int | None = None) -> int:
    """So many torch threads for what the calling thread computes from here on; gives what MKL had before.

    torch.set_num_threads would also say how many every thread gets that begins later, a user's as well.
    OpenMP and MKL keep a number for each thread (MKL's is 0 where it follows OpenMP's); a torch that was
    built without them is left as it is.
    """
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
    before = torch.get_num_threads()
    of_mkl = set_torch_threads(number)
    try:
        yield before
    finally:
        set_torch_threads(before, of_mkl)


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
            with torch_threads(1), torch.no_grad(), torch.inference_mode(is_inference):
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
