"""A Dask cluster that is there already; its scheduler replaces workers and tries again what they had.

Encryption and certificates come from Dask's own configuration, its files or environment variables.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any, TypeVar

from attncli import __version__
from attncli.batch.engines.failures import C, Died, Pending, Queue, died_of
from attncli.errors import RunError, UserError

R = TypeVar("R")

SECONDS_TO_CONNECT = 15
SECONDS_FOR_A_WORKER = 60
CHUNKS_A_THREAD = 2
MAX_ATTEMPTS_ALONE = 2
"""Each of several workers: the scheduler itself tries again, 3 times unless it is configured otherwise."""
ONE_AT_A_TIME = Lock()


def versions() -> dict[str, str]:
    """What has to be the same on every worker, for the same figures; no CPU or GPU build (`+cpu`)."""
    try:
        return {"attncli": __version__, "torch": version("torch").partition("+")[0]}
    except PackageNotFoundError:
        return {"attncli": __version__, "torch": "missing"}


def work_there(work: Callable[[C], R], chunk: C, expected: dict[str, str]) -> R | Died:
    """On a worker: work(chunk), for one chunk at a time in a process, however many threads it has.

    A worker may have joined after the others were asked for their versions.
    """
    if (got := versions()) != expected:
        raise RunError(_differ("a worker", got, expected))
    with ONE_AT_A_TIME:
        try:
            return work(chunk)
        except Exception as error:
            return died_of(error)


def run_chunks(
    chunks: Iterable[C], work: Callable[[C], R], *, scheduler: str
) -> Iterator[tuple[C, R | Died]]:
    """Each chunk with its result, as they are done. `work` is a function of a module that the workers have.

    UserError without distributed, or where the versions there differ; RunError where nobody answers.
    """
    try:
        import distributed
    except ImportError:
        raise UserError('scheduler: needs: pip install "attncli[cluster]"') from None
    client = _connected(distributed, scheduler)
    try:
        _check_workers(client, scheduler)
        yield from _results(distributed, client, Queue.of(chunks, MAX_ATTEMPTS_ALONE), work, scheduler)
    finally:
        client.close()


def _connected(distributed: Any, scheduler: str) -> Any:
    try:
        return distributed.Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise RunError(f"scheduler: {scheduler} does not answer: {_one_line(error)}") from None
    except (ValueError, TypeError, RuntimeError) as error:  # no address; certificates that are missing
        raise UserError(f"scheduler: {scheduler}: {_one_line(error)}") from None


def _check_workers(client: Any, scheduler: str) -> None:
    try:
        client.wait_for_workers(1, timeout=SECONDS_FOR_A_WORKER)
    except TimeoutError:
        waited = f"waited {SECONDS_FOR_A_WORKER} s"
        raise RunError(
            f"scheduler: {scheduler} has no workers ({waited}): start some, and run again"
        ) from None
    expected = versions()
    for worker, got in client.run(versions, on_error="return").items():
        if isinstance(got, ImportError | AttributeError):
            install = f"pip install attncli=={__version__}"
            raise UserError(
                f"scheduler: attncli cannot be imported on {worker} ({_one_line(got)}): {install}"
            )
        if isinstance(got, Exception):
            raise RunError(f"scheduler: {worker} does not answer: {_one_line(got)}")
        if got != expected:
            raise UserError(_differ(worker, got, expected))


def _differ(worker: str, got: dict[str, str], expected: dict[str, str]) -> str:
    differing = [
        f"{name} {got.get(name, 'missing')} (here {here})"
        for name, here in expected.items()
        if got.get(name) != here
    ]
    return f"scheduler: {worker} has {', '.join(differing)}: install the same version there"


def _results(
    distributed: Any, client: Any, queue: Queue[C], work: Callable[[C], R], scheduler: str
) -> Iterator[tuple[C, R | Died]]:
    running: dict[Any, Pending[C]] = {}
    done = distributed.as_completed()
    expected = versions()
    while True:
        most = CHUNKS_A_THREAD * max(1, sum(client.nthreads().values()))
        while len(running) < most and (pending := queue.take()) is not None:
            future = client.submit(work_there, work, pending.chunk, expected, pure=False)
            running[future] = pending
            done.add(future)
        if not running:
            return
        future = next(done)
        pending = running.pop(future)
        result = _result(distributed, future, scheduler)
        if isinstance(result, Died):
            result = queue.failed(pending, result)
            if result is None:
                continue
        yield pending.chunk, result


def _result(distributed: Any, future: Any, scheduler: str) -> Any:
    try:
        return future.result()
    except distributed.KilledWorker as error:
        return Died(f"its workers ended, {error.allowed_failures + 1} of them")
    except UserError:
        raise
    except Exception as error:
        raise RunError(f"scheduler: {scheduler}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
