"""Runs a plan: hands chunks of jobs to an executor, and puts every result into the store."""

import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from signal import Signals
from threading import Thread
from traceback import format_exception
from types import ModuleType
from typing import NamedTuple

import numpy as np

from attncli.core.runtime import VARIABLE
from attncli.errors import RunError, is_about_memory, out_of_memory
from attncli.runs.chunks import Chunk, ChunkResult, ChunkRunner, UnfinishedJob, run_chunk
from attncli.runs.jobs import Job
from attncli.runs.keys import RunKeys
from attncli.runs.plan import Plan
from attncli.runs.report_values import Expectations
from attncli.runs.store import Store
from attncli.runs.stored_columns import StoredColumns
from attncli.system.platforms import interrupts_blocked

MAX_ATTEMPTS_ALONE = 3
"""A worker may die for other reasons than its run: memory taken by a neighbour, a machine switched off."""


@dataclass(frozen=True)
class Died:
    """Why the run in a chunk of one has no result; with a traceback if the work raised an error."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Died":
        """`ValueError: what was wrong`, and where."""
        if is_about_memory(error):
            return cls(out_of_memory(error), "".join(format_exception(error)))
        message = "; ".join(str(error).splitlines())
        name = type(error).__name__
        return cls(f"{name}: {message}" if message else name, "".join(format_exception(error)))


ChunkEnd = ChunkResult | Died


def attempted(work: ChunkRunner, chunk: Chunk) -> ChunkEnd:
    """The result of the work, or what it raised: one failing run must not lose the others."""
    try:
        return work(chunk)
    except Exception as error:  # of a model, a file or ours: the run fails and says why
        return Died.of(error)


class Pending(NamedTuple):
    """A chunk to compute, and how often it has failed so far."""

    chunk: Chunk
    failures: int = 0


class Queue:
    """The chunks that no worker has: those to try again, then those of the plan, pulled one by one."""

    def __init__(self, chunks: Iterable[Chunk], max_attempts_alone: int = MAX_ATTEMPTS_ALONE) -> None:
        self._chunks = iter(chunks)
        self._max_attempts_alone = max_attempts_alone
        self._again: deque[Pending] = deque()

    def take(self) -> Pending | None:
        """The next chunk, or None where all are taken (one that is being computed may still come back)."""
        if self._again:
            return self._again.popleft()
        chunk = next(self._chunks, None)
        return None if chunk is None else Pending(chunk)

    def put_back(self, pending: Pending) -> None:
        """Return a chunk that its worker never started."""
        self._again.appendleft(pending)

    def finished(self, pending: Pending, result: ChunkEnd) -> Iterator[tuple[Chunk, ChunkEnd]]:
        """The chunk with its result; nothing if it failed and will be tried again.

        Several runs are tried again in halves; one run comes back with Died if it raised, or after several
        workers died with it.
        """
        chunk, failures = pending
        if isinstance(result, Died) and len(chunk) > 1:
            self._again.extendleft(map(Pending, reversed(chunk.split())))
        elif isinstance(result, Died) and not result.traceback and failures + 1 < self._max_attempts_alone:
            self._again.appendleft(Pending(chunk, failures + 1))
        else:
            yield chunk, result


def run_here(chunks: Iterable[Chunk], work: ChunkRunner) -> Iterator[tuple[Chunk, ChunkEnd]]:
    """Each chunk with its result, in order. What kills this process kills the batch."""
    queue = Queue(chunks)
    while (pending := queue.take()) is not None:
        yield from queue.finished(pending, attempted(work, pending.chunk))


CHUNKS_EACH = 2
"""One that it computes and one that waits, so that no worker is idle while its result is stored."""
MAX_FAILED_STARTS = 3


class _Process(SpawnProcess):
    """It imports no script that runs here."""

    def start(self) -> None:
        """Ctrl-C is for this process, which ends its workers: it is blocked here, and stays so there."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            with interrupts_blocked():
                super().start()
        finally:
            sys.modules["__main__"] = main


class Worker:
    """A process that computes chunks in the order in which they are sent.

    Nobody else holds its end of the pipe, so that what it was sending as it died ends there: the executors of
    `concurrent.futures` hold it, and wait for the rest.
    """

    def __init__(self, work: ChunkRunner) -> None:
        self.sent: deque[Pending] = deque()
        self.has_begun = False
        self.connection, its_end = Pipe()
        self.process = _Process(target=_serve, args=(its_end, work), daemon=True)
        with _environment_of_workers():
            self.process.start()
        its_end.close()

    def send(self, pending: Pending) -> None:
        """Send it one more chunk."""
        self.sent.append(pending)
        with suppress(OSError):  # it has died since its last result: the next one says so
            self.connection.send(pending.chunk)

    def received(self) -> Iterator[ChunkEnd]:
        """The result that arrived; a worker first says that it began. EOFError or OSError if it died."""
        message = self.connection.recv_bytes()
        if self.has_begun:
            yield pickle.loads(message)
        self.has_begun = True

    def end(self) -> int:
        """Kill it, if it is alive; its exit status, negative for a signal."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        status = self.process.exitcode
        assert status is not None, "it was waited for"
        return status


ENVIRONMENT = {
    VARIABLE: "1",  # torch's threads
    "PYTHONSAFEPATH": "1",  # no modules of the folder where this runs
    "PYTHONWARNINGS": "ignore:resource_tracker",  # where this is killed: it tells what it cleans up after us
}


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """What is in ENVIRONMENT for processes that start meanwhile, unless the environment has it."""
    added = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _serve(connection: Connection, work: ChunkRunner) -> None:
    """Serve in a worker, which prints to standard error and ends with the process that started it."""
    os.dup2(2, 1)
    Thread(target=_end_with_parent, daemon=True).start()
    chunks: SimpleQueue[bytes] = SimpleQueue()
    # At any time, so that who sends a chunk does not wait for the result of the one before.
    Thread(target=_receive, args=(connection, chunks), daemon=True).start()
    connection.send_bytes(BEGUN)
    while True:
        result = attempted(work, pickle.loads(chunks.get()))
        try:
            message = ForkingPickler.dumps(result)
        except Exception as error:  # whatever the work gave, and why that cannot be sent
            message = ForkingPickler.dumps(Died.of(error))
        with suppress(OSError):  # who wanted it has ended, and so will this process
            connection.send_bytes(message)


def _receive(connection: Connection, chunks: "SimpleQueue[bytes]") -> None:
    with suppress(EOFError, OSError):  # of the process that ended this one
        while True:
            chunks.put(connection.recv_bytes())


BEGUN = b"begun"


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has one"
    parent.join()
    os._exit(0)


def run_in_workers(
    chunks: Iterable[Chunk], work: ChunkRunner, *, workers: int
) -> Iterator[tuple[Chunk, ChunkEnd]]:
    """Each chunk with its result, as they are done. `work` is a function in a module; chunks can be pickled.

    Each worker has one torch thread, unless OMP_NUM_THREADS says how many, and at most two chunks.
    Closing the iterator, or any exception, ends the workers at once. RunError if no worker can be started.
    """
    pool = Workers(Queue(chunks), work)
    try:
        # No more than there are chunks: each takes a second of a core to start.
        for pending in islice(iter(pool.queue.take, None), workers):
            pool.start().send(pending)
        while pool.feed():
            yield from pool.results()
    finally:
        for worker in pool.workers:
            worker.end()


class Workers:
    """The living workers, and the chunks not handed to any."""

    def __init__(self, queue: Queue, work: ChunkRunner) -> None:
        self.queue, self.work = queue, work
        self.workers: list[Worker] = []
        self.failed_starts = 0

    def start(self) -> Worker:
        """One more worker."""
        self.workers.append(Worker(self.work))
        return self.workers[-1]

    def feed(self) -> bool:
        """Hand out chunks, one to every worker before any gets a second; whether any worker is busy."""
        for level in range(1, CHUNKS_EACH + 1):
            for worker in self.workers:
                if len(worker.sent) < level and (pending := self.queue.take()) is not None:
                    worker.send(pending)
        return any(worker.sent for worker in self.workers)

    def results(self) -> Iterator[tuple[Chunk, ChunkEnd]]:
        """Wait for a worker; each finished chunk with its result."""
        busy = [worker for worker in self.workers if worker.sent]
        have_written = wait([worker.connection for worker in busy])
        for worker in [worker for worker in busy if worker.connection in have_written]:
            try:
                results = [*worker.received()]
            except (EOFError, OSError):
                yield from self._replace(worker)
                continue
            for result in results:
                self.failed_starts = 0
                yield from self.queue.finished(worker.sent.popleft(), result)

    def _replace(self, worker: Worker) -> Iterator[tuple[Chunk, ChunkEnd]]:
        self.workers.remove(worker)
        ending = ended(worker.end())
        lost = [*worker.sent]
        if not worker.has_begun:
            self.failed_starts += 1
            if self.failed_starts == MAX_FAILED_STARTS:
                raise RunError(f"workers: none could be started: the last one {ending}")
        else:
            self.failed_starts = 0
            yield from self.queue.finished(lost.pop(0), Died(f"its worker {ending}"))
        for pending in reversed(lost):
            self.queue.put_back(pending)
        self.start()


def ended(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    named = {signal.value: signal.name for signal in Signals}  # without most real-time signals
    return f"was killed by {named.get(-status, f'signal {-status}')}"


FEWEST_JOBS, MOST_JOBS = 16, 1024
FIRST_JOBS = 1, 256
SECONDS_A_CHUNK, SECONDS_A_CHUNK_TOGETHER = 1.0, 4.0
"""The latter for runs of which many together are much faster than a few: texts through a model."""
SHARE_OF_FIRST_CHUNK = 0.25
MAX_GROWTH = 4
JOBS_A_LOOKUP = 256
JOBS_A_WINDOW = 4096

Executor = Callable[[Iterable[Chunk], ChunkRunner], Iterator[tuple[Chunk, ChunkEnd]]]
"""It pulls chunks as it needs them and yields each with its result, in any order.

A chunk whose worker died, or whose work raised, is tried again in halves; a chunk of one run that fails every
time comes back with Died.
"""


def _length(job: Job) -> int:
    """About how many words the sentence has; blanks are quick to count."""
    return job.prompt.text.count(" ") if job.prompt is not None else 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end, so that every stored run is also counted."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


@dataclass
class Driver:
    """Runs one batch into one store, which knows the plan: `num_runs`, of which `kept` were done before.

    `num_workers` take its chunks, of about `seconds_a_chunk`; a job takes about `seconds_a_job`, as far as
    that is known.
    `on_errors` gets the name of each run that failed or did not meet an expectation, and lines that say why;
    `on_progress` gets how many runs there are, were done before, are done now, and failed now.
    """

    plan: Plan
    keys: RunKeys
    store: Store
    _: KW_ONLY
    num_runs: int
    kept: int
    expectations: Expectations
    num_workers: int = 1
    seconds_a_job: float = 0.0
    seconds_a_chunk: float = SECONDS_A_CHUNK
    fail_fast: bool
    on_errors: Callable[[str, list[str]], None]
    on_progress: Callable[[int, int, int, int], None]
    done: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    broken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        fewest, most = FIRST_JOBS
        wanted = int(SHARE_OF_FIRST_CHUNK * self.seconds_a_chunk / max(self.seconds_a_job, 1e-9))
        self._jobs_a_chunk = max(fewest, min(most, wanted))
        self._jobs_left = self.plan.num_jobs

    @property
    def stopped(self) -> bool:
        """Whether fail_fast ends the batch here, with runs left."""
        return self.fail_fast and bool(self.failed or self.broken)

    def run(self, executor: Executor) -> None:
        """Every run that is not done; with fail_fast until one fails or does not meet an expectation."""
        self._show_progress()
        results = executor(self._chunks(), run_chunk)
        try:
            for chunk, result in results:
                if not isinstance(result, ChunkResult):
                    result = ChunkResult(errors=dict.fromkeys(chunk.runs(), result.reason))
                self._take(chunk, result)
                if self.stopped:
                    break
        finally:
            # End the workers now, not when the iterator is collected.
            if hasattr(results, "close"):
                results.close()

    def _show_progress(self) -> None:
        self.on_progress(self.num_runs, self.kept, self.done, self.failed)

    def _chunks(self) -> Iterator[Chunk]:
        """Jobs that have a run to do, as many together as take some seconds; fewer towards the end.

        Among some thousand jobs at a time those of equal length are neighbours, since they are computed
        together, and the longest come first, so that no worker is left with them at the end.
        """
        undone = self._undone()
        while window := list(islice(undone, JOBS_A_WINDOW)):
            window.sort(key=lambda job: _length(job[0]), reverse=True)
            while window and not self.stopped:
                size = min(self._jobs_a_chunk, self._fair_share(self._jobs_left + len(window)))
                yield self.store.chunk(tuple(window[:size]))
                del window[:size]

    def _fair_share(self, num_left: int) -> int:
        """A number of jobs with which several workers end at about the same time."""
        if self.num_workers == 1:
            return num_left
        return max(FEWEST_JOBS, num_left // (2 * self.num_workers))

    def _undone(self) -> Iterator[UnfinishedJob]:
        """The jobs with a run that is not done and does not occur earlier in the plan."""
        jobs = self.plan.jobs()
        while not self.stopped and (some := list(islice(jobs, JOBS_A_LOOKUP))):
            self._jobs_left -= len(some)
            keys = [self.keys.of_job(job) for job in some]
            planned = self.store.planned([key for of_job in keys for key in of_job])
            for job, of_job in zip(some, keys, strict=True):
                left = tuple(self._keys_left(job, of_job, planned))
                if any(left):
                    yield job, left

    def _keys_left(
        self, job: Job, keys: Sequence[bytes], planned: Mapping[bytes, tuple[int, bool]]
    ) -> Iterator[bytes | None]:
        """The key of each run to be done here, None for the others; those that are done are checked again."""
        for place, (item, key) in enumerate(zip(job.chain, keys, strict=True), start=job.place):
            first, is_done = planned[key]
            if place == first and is_done and self.expectations.conditions:
                self._check(job.name(item), *self.store.values(key))
            yield None if is_done or place != first else key

    def _take(self, chunk: Chunk, result: ChunkResult) -> None:
        """Store first: every run reported as done is stored."""
        with _uninterrupted():
            self.store.write(chunk, result)
            self.failed += len(result.errors)
            self.done += len(result.values)
        if result.seconds_a_job:
            # Chunks grow step by step for small runs; a long run is a chunk by itself.
            wanted = int(self.seconds_a_chunk / result.seconds_a_job)
            self._jobs_a_chunk = max(1, min(wanted, MAX_GROWTH * self._jobs_a_chunk, MOST_JOBS))
        if result.errors or self.expectations.conditions:
            for number, run in chunk.runs().items():
                if number in result.errors:
                    self.on_errors(run.job.name(run.item), result.errors[number].splitlines())
                else:
                    self._check(run.job.name(run.item), *result.values[number])
        self._show_progress()

    def _check(self, name: str, columns: StoredColumns, values: np.ndarray) -> None:
        if broken := self.expectations.broken(columns, values):
            self.broken += 1
            self.on_errors(name, broken)
