"""Run chunks on an existing Dask cluster; its scheduler replaces workers and retries their chunks.

Encryption and certificates come from Dask's configuration, that is, its files or environment variables.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any

from attncli.errors import RunError, UserError, one_line_reason
from attncli.runs.chunks import Chunk, ChunkRunner
from attncli.runs.driver import ChunkEnd, Died, Pending, Queue, attempted
from attncli.system.version import __version__

SECONDS_TO_CONNECT = 15
SECONDS_FOR_A_WORKER = 60
CHUNKS_A_THREAD = 2
MAX_ATTEMPTS_ALONE = 2
"""An attempt may use several workers, because the scheduler itself retries (3 times by default)."""
ONE_AT_A_TIME = Lock()
UNKNOWN_THERE = ("ModuleNotFoundError", "ImportError", "AttributeError")


def versions() -> dict[str, str]:
    """Return the versions that must match on every worker for equal results, without endings like `+cpu`."""
    try:
        return {"attncli": __version__, "torch": version("torch").partition("+")[0]}
    except PackageNotFoundError:
        return {"attncli": __version__, "torch": "missing"}


def work_there(work: ChunkRunner, chunk: Chunk, expected: dict[str, str]) -> ChunkEnd:
    """Run `work(chunk)` on a worker, one chunk at a time per process, however many threads the process has.

    The versions are compared again, since a worker may have joined after the first comparison.
    """
    if (got := versions()) != expected:
        raise RunError(_differ("a worker", got, expected))
    with ONE_AT_A_TIME:
        return attempted(work, chunk)


def run_in_cluster(
    chunks: Iterable[Chunk],
    work: ChunkRunner,
    *,
    scheduler: str,
    on_wait: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[Chunk, ChunkEnd]]:
    """Yield each chunk with its result, in order of completion.

    `work` is a function in a module that is installed on the workers.

    `on_wait` gets a line to print if the cluster has no workers yet.

    Raises UserError if distributed is missing or the versions differ. Raises RunError if the scheduler does
    not answer.
    """
    check_scheduler(scheduler)
    distributed = _distributed()
    with _quiet():
        with _connecting(scheduler):
            client = distributed.Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        try:
            with _staying(scheduler):
                if not client.nthreads():
                    waiting = f"waiting {SECONDS_FOR_A_WORKER} s for a worker"
                    on_wait(f"scheduler: {scheduler} has no workers yet: {waiting}")
                _check_workers(client, scheduler)
                yield from _results(distributed, client, Queue(chunks, MAX_ATTEMPTS_ALONE), work, scheduler)
        finally:
            client.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's log on stderr, because errors are reported on one line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def check_scheduler(scheduler: str) -> None:
    """Raise UserError if distributed is missing or the address is invalid.

    Raises RunError if the scheduler does not answer.
    """
    distributed = _distributed()
    with _quiet(), _connecting(scheduler):
        # A client that cannot connect keeps trying in the background.
        asyncio.run(_try_to_connect(distributed, scheduler))


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UserError('scheduler: needs: pip install "attncli[cluster]"') from None
    return distributed


async def _try_to_connect(distributed: Any, scheduler: str) -> None:
    options = distributed.Security().get_connection_args("client")
    comm = await distributed.connect(scheduler, timeout=SECONDS_TO_CONNECT, **options)
    await comm.close()


@contextmanager
def _connecting(scheduler: str) -> Iterator[None]:
    try:
        yield
    except (OSError, TimeoutError) as error:
        raise RunError(f"scheduler: {scheduler} does not answer: {one_line_reason(error)}") from None
    except (ValueError, TypeError, RuntimeError) as error:  # an invalid address or missing certificates
        raise UserError(f"scheduler: {scheduler}: {one_line_reason(error)}") from None


@contextmanager
def _staying(scheduler: str) -> Iterator[None]:
    """Raise RunError if the connection is lost: Dask's connection errors are OSErrors without a number."""
    try:
        yield
    except CancelledError:
        raise RunError(_went_away(scheduler)) from None
    except OSError as error:
        if error.errno is not None:  # an error about a file of the plan
            raise
        raise RunError(_went_away(scheduler)) from None


def _went_away(scheduler: str) -> str:
    advice = "rerun the same command once the scheduler is back"
    return f"scheduler: the connection to {scheduler} was lost: {advice}"


def _check_workers(client: Any, scheduler: str) -> None:
    try:
        client.wait_for_workers(1, timeout=SECONDS_FOR_A_WORKER)
    except TimeoutError:
        waited = f"waited {SECONDS_FOR_A_WORKER} s"
        raise RunError(
            f"scheduler: {scheduler} has no workers ({waited}): start some and rerun the command"
        ) from None
    expected = versions()
    for worker, got in client.run(versions, on_error="return").items():
        # An error raised while the worker unpickles the call comes back as text.
        if isinstance(got, Exception) and any(name in repr(got) for name in UNKNOWN_THERE):
            install = f"pip install attncli=={__version__}"
            raise UserError(
                f"scheduler: attncli cannot be imported on {worker} ({one_line_reason(got)}): {install}"
            )
        if isinstance(got, Exception):
            raise RunError(f"scheduler: {worker} does not answer: {one_line_reason(got)}")
        if got != expected:
            raise UserError(_differ(worker, got, expected))


def _differ(worker: str, got: dict[str, str], expected: dict[str, str]) -> str:
    differing = [
        f"{name} {got.get(name, 'missing')} (here {here})"
        for name, here in expected.items()
        if got.get(name) != here
    ]
    return f"scheduler: {worker} has {', '.join(differing)}: install the same versions on that worker"


def _results(
    distributed: Any, client: Any, queue: Queue, work: ChunkRunner, scheduler: str
) -> Iterator[tuple[Chunk, ChunkEnd]]:
    running: dict[Any, Pending] = {}
    done = distributed.as_completed(loop=client.loop)
    expected = versions()
    while True:
        most = CHUNKS_A_THREAD * max(1, sum(client.nthreads().values()))
        while len(running) < most and (pending := queue.take()) is not None:
            # The scheduler blames a worker's death on all chunks waiting there, so retry them one at a time.
            if pending.failures and running:
                queue.put_back(pending)
                break
            future = client.submit(work_there, work, pending.chunk, expected, pure=False)
            running[future] = pending
            done.add(future)
            if pending.failures:
                break
        if not running:
            return
        future = next(done)
        yield from queue.finished(running.pop(future), _result(distributed, future, scheduler))


def _result(distributed: Any, future: Any, scheduler: str) -> Any:
    try:
        return future.result()
    except distributed.KilledWorker as error:
        return Died(f"{error.allowed_failures + 1} workers ended while computing this run")
    except UserError:
        raise
    except CancelledError:
        raise RunError(_went_away(scheduler)) from None
    except Exception as error:  # any error that Dask raises when its scheduler fails
        raise RunError(f"scheduler: {scheduler}: {one_line_reason(error)}") from error
