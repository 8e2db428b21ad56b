"""Runs of a model side by side, block by block: weights that stay in their files are read once for all."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from threading import Semaphore, Thread
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from attncli.models.stored import blocks_of, use_of

Given = TypeVar("Given")
Batch = TypeVar("Batch", bound=Sized)

MOST_JOBS = 64
"""Each is a thread that holds the vectors of its texts between two blocks, and what was measured of them."""


class _Stopped(BaseException):
    """Ends a run that nobody waits for any more; not an error that a model's caller would catch."""


class _Job(Generic[Given]):
    """A run in a thread of its own, which goes on when it is told to, until the next block."""

    def __init__(self, work: Callable[[], Given]) -> None:
        self.error: BaseException | None = None
        self.has_ended = self.is_stopped = False
        self.given: list[Given] = []
        self._go, self._paused = Semaphore(0), Semaphore(0)
        context, num_threads = copy_context(), torch.get_num_threads()

        def run() -> None:
            # torch has these for each thread.
            torch.set_num_threads(num_threads)
            _running.set(self)
            self._go.acquire()
            try:
                if not self.is_stopped:
                    self.given.append(work())
            except _Stopped:
                pass
            except BaseException as error:  # whatever it is, whoever waits for the run gets it
                self.error = error
            self.has_ended = True
            self._paused.release()

        self._thread = Thread(target=context.run, args=(run,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Let it run to the next block, or to its end."""
        self._go.release()
        self._paused.acquire()

    def arrive(self) -> None:
        """Called in its thread before a block: wait for the others."""
        self._paused.release()
        self._go.acquire()
        if self.is_stopped:
            raise _Stopped

    def stop(self) -> None:
        """End it, wherever it waits."""
        self.is_stopped = True
        while not self.has_ended:
            self.go_on()
        self._thread.join()


_running: ContextVar[_Job[Any] | None] = ContextVar("running", default=None)


def in_step(model: nn.Module, works: Sequence[Callable[[], Given]]) -> list[Given]:
    """What each of these gives, which run the model on texts of their own.

    Where its weights stay in their files they run side by side: all the first block, then all the second, so
    that each is read once. The error of the first that fails.
    """
    use = use_of(model)
    if use is None or use.keeps or len(works) < 2:
        return [work() for work in works]
    jobs = [_Job(work) for work in works]
    with ExitStack() as hooks:
        for job in jobs:
            hooks.callback(job.stop)
        for stack in blocks_of(model):
            for block in stack:
                hooks.enter_context(block.register_forward_pre_hook(_wait))
        while waiting := [job for job in jobs if not job.has_ended]:
            with use.holding():
                for job in waiting:
                    job.go_on()
                    if job.error is not None:
                        raise job.error
    return [job.given[0] for job in jobs]


def _wait(_block: nn.Module, _inputs: object) -> None:
    job = _running.get()
    if job is not None:
        job.arrive()


@contextmanager
def by_itself() -> Iterator[None]:
    """While it is open a run does not wait for others: what it changes of the model is not for them."""
    token = _running.set(None)
    try:
        yield
    finally:
        _running.reset(token)


def of_this_run(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of a model that heeds the run in which it was made, and no other beside it."""
    job = _running.get()

    def called(*args: Any, **named: Any) -> Any:
        return hook(*args, **named) if _running.get() is job else None

    return called


@contextmanager
def counted(model: nn.Module, show: Callable[[int, int], None]) -> Iterator[None]:
    """While it is open, `show` gets the number of each block before it runs, from 1, and how many there are.

    Only of a model whose weights stay in their files: its blocks take time.
    """
    blocks = [block for stack in blocks_of(model) for block in stack]
    with ExitStack() as hooks:
        for number, block in enumerate(blocks, start=1):
            hook = block.register_forward_pre_hook(lambda _b, _inputs, n=number: show(n, len(blocks)))
            hooks.enter_context(hook)
        yield


def together(model: nn.Module, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Batches of texts, as many at a time as run side by side."""
    use = use_of(model)
    most = 1 if use is None or use.keeps else MOST_JOBS
    some: list[Batch] = []
    for batch in batches:
        some.append(batch)
        if len(some) == most:
            yield some
            some = []
    if some:
        yield some
