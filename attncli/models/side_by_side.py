"""Runs of a model in threads that take turns, so that products with the same weight are computed together."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from threading import Semaphore, Thread, get_ident
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from attncli.core.runtime import set_torch_threads

RunResult = TypeVar("RunResult")
RowsToRows = Callable[[Tensor], Tensor]


class _Stopped(BaseException):
    """Ends a run that is no longer needed.

    It is not an Exception, which code that calls a model might catch.
    """


class _Product:
    """A product that a run waits for: the rows (..., dim), the weights, and the function that computes it."""

    def __init__(self, rows: Tensor, weights: tuple[object, ...], compute: RowsToRows) -> None:
        self.rows, self.weights, self.compute = rows, weights, compute
        self.result: Tensor | None = None

    def alike(self) -> tuple[object, ...]:
        """The key shared by products that can be computed as one product of more rows."""
        return (*map(id, self.weights), self.rows.shape[-1], self.rows.dtype, self.rows.device)


class ThreadedRun(Generic[RunResult]):
    """A run in a separate thread; when asked, it proceeds until it waits for the other runs."""

    def __init__(self, work: Callable[[], RunResult], *, shares_products: bool) -> None:
        self.error: BaseException | None = None
        self.shares_products = shares_products
        self.product: _Product | None = None
        self.has_ended = self.is_stopped = False
        self.given: list[RunResult] = []
        self._go, self._paused = Semaphore(0), Semaphore(0)
        context, num_threads = copy_context(), torch.get_num_threads()

        def run() -> None:
            # torch keeps these settings per thread.
            set_torch_threads(num_threads)
            _running.set(self)
            self._go.acquire()
            try:
                if not self.is_stopped:
                    self.given.append(work())
            except _Stopped:
                pass
            except BaseException as error:  # the thread that waits for the run raises it
                self.error = error
            self.has_ended = True
            self._paused.release()

        self._thread = Thread(target=context.run, args=(run,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Continue the run until it waits again or ends. Raises the run's error if it failed."""
        self._go.release()
        self._paused.acquire()
        if self.error is not None:
            raise self.error

    def wait(self) -> None:
        """Wait for the other runs. This is called in the run's own thread."""
        self._paused.release()
        self._go.acquire()
        if self.is_stopped:
            raise _Stopped

    def wait_for(self, product: _Product) -> Tensor:
        """Wait until the product is computed. This is called in the run's own thread."""
        self.product = product
        try:
            self.wait()
        finally:
            self.product = None
        assert product.result is not None
        return product.result

    def stop(self) -> None:
        """End the run, wherever it is waiting."""
        self.is_stopped, self.error = True, None
        while not self.has_ended:
            self._go.release()
            self._paused.acquire()
        self._thread.join()


_running: ContextVar[ThreadedRun[Any] | None] = ContextVar("running", default=None)


@contextmanager
def side_by_side(
    works: Sequence[Callable[[], RunResult]], *, shares_products: bool
) -> Iterator[list[ThreadedRun[RunResult]]]:
    """Start a run for each task. All runs have ended after the block."""
    with ExitStack() as running:
        runs = []
        for work in works:
            runs.append(ThreadedRun(work, shares_products=shares_products))
            running.callback(runs[-1].stop)
        yield runs


def go_on(runs: Sequence[ThreadedRun[Any]]) -> None:
    """Continue all runs until they wait for each other, or end.

    Raises the error of the first run that fails.
    """
    for run in runs:
        run.go_on()
    while asking := [run for run in runs if run.product is not None]:
        _compute([run.product for run in asking if run.product is not None])
        for run in asking:
            run.go_on()


def _compute(products: Sequence[_Product]) -> None:
    """Compute each result, with a single product for all products that share weights."""
    by_weights: dict[tuple[object, ...], list[_Product]] = {}
    for product in products:
        by_weights.setdefault(product.alike(), []).append(product)
    for alike in by_weights.values():
        flat = [product.rows.flatten(end_dim=-2) for product in alike]
        with torch.no_grad():
            results = torch.split(alike[0].compute(torch.cat(flat)), [len(rows) for rows in flat])
        for product, result in zip(alike, results, strict=True):
            product.result = result.view(*product.rows.shape[:-1], -1)


def wait_for_runs(*_inputs: object) -> None:
    """A hook before a block, where a run that is one of several waits for the others."""
    run = _running.get()
    if run is not None:
        run.wait()


def product_for_all(rows: Tensor, weights: tuple[object, ...], compute: RowsToRows) -> Tensor | None:
    """Return the result of `compute` for rows (..., dim) with these weights, computed for all runs at once.

    Return None in a single run, in a run whose result must equal that of a single run bit by bit, and if
    gradients, autocast or a tensor subclass observe the computation.
    """
    run = _running.get()
    if run is None or not run.shares_products or type(rows) is not Tensor or rows.ndim < 2:
        return None
    if (torch.is_grad_enabled() and rows.requires_grad) or torch.is_autocast_enabled(rows.device.type):
        return None
    return run.wait_for(_Product(rows, weights, compute))


@contextmanager
def by_itself() -> Iterator[None]:
    """Inside the block, keep a run from waiting for others, since it changes the model only for itself."""
    token = _running.set(None)
    try:
        yield
    finally:
        _running.reset(token)


def of_this_run(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that acts only in the run in which it was made, in any thread."""
    run, thread = _running.get(), get_ident()

    def called(*args: Any, **named: Any) -> Any:
        return hook(*args, **named) if _running.get() is run and get_ident() == thread else None

    return called
