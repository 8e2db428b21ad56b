"""Run a plan: hand chunks of jobs to an executor and store every result."""

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
from attncli.records.stored_columns import StoredColumns
from attncli.runs.chunks import Chunk, ChunkResult, ChunkRunner, UnfinishedJob, run_chunk
from attncli.runs.jobs import Job
from attncli.runs.keys import RunKeys
from attncli.runs.plan import Plan
from attncli.runs.report_values import Expectations
from attncli.runs.store import Store
from attncli.system.platforms import interrupts_blocked

MAX_ATTEMPTS_ALONE = 3
"""Attempts per run, because a worker may die for other reasons, such as another process taking the memory."""


@dataclass(frozen=True)
class Died:
    """The reason why a one-run chunk has no result, with a traceback if the work raised an error."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> "Died":
        """Return an error's type and message, as `ValueError: ...`, with its traceback."""
        if is_about_memory(error):
            return cls(out_of_memory(error), "".join(format_exception(error)))
        message = "; ".join(str(error).splitlines())
        name = type(error).__name__
        return cls(f"{name}: {message}" if message else name, "".join(format_exception(error)))


ChunkEnd = ChunkResult | Died


def attempted(work: ChunkRunner, chunk: Chunk) -> ChunkEnd:
    """Return the result of the work or the error that it raised, so that the other runs are not lost."""
    try:
        return work(chunk)
    except Exception as error:  # from the model, a file, or attn: the run fails with this reason
        return Died.of(error)


class Pending(NamedTuple):
    """A chunk to compute, and the number of times it has failed so far."""

    chunk: Chunk
    failures: int = 0


class Queue:
    """Chunks that no worker holds: first the chunks to retry, then the chunks of the plan, one by one."""

    def __init__(self, chunks: Iterable[Chunk], max_attempts_alone: int = MAX_ATTEMPTS_ALONE) -> None:
        self._chunks = iter(chunks)
        self._max_attempts_alone = max_attempts_alone
        self._again: deque[Pending] = deque()

    def take(self) -> Pending | None:
        """Return the next chunk, or None if none is left; a chunk in progress may still be put back."""
        if self._again:
            return self._again.popleft()
        chunk = next(self._chunks, None)
        return None if chunk is None else Pending(chunk)

    def put_back(self, pending: Pending) -> None:
        """Put back a chunk that its worker never started."""
        self._again.appendleft(pending)

    def finished(self, pending: Pending, result: ChunkEnd) -> Iterator[tuple[Chunk, ChunkEnd]]:
        """Yield the chunk with its result, or nothing if the chunk failed and will be retried.

        A failed chunk of several runs is retried in halves. A failed chunk of one run comes back with Died if
        the work raised an error, or after several workers died computing it.
        """
        chunk, failures = pending
        if isinstance(result, Died) and len(chunk) > 1:
            self._again.extendleft(map(Pending, reversed(chunk.split())))
        elif isinstance(result, Died) and not result.traceback and failures + 1 < self._max_attempts_alone:
            self._again.appendleft(Pending(chunk, failures + 1))
        else:
            yield chunk, result


def run_here(chunks: Iterable[Chunk], work: ChunkRunner) -> Iterator[tuple[Chunk, ChunkEnd]]:
    """Yield each chunk with its result, in order. Whatever kills this process ends the batch."""
    queue = Queue(chunks)
    while (pending := queue.take()) is not None:
        yield from queue.finished(pending, attempted(work, pending.chunk))


CHUNKS_EACH = 2
"""Chunks per worker, one of them in reserve, so that no worker is idle while a result is stored."""
MAX_FAILED_STARTS = 3


class _Process(SpawnProcess):
    """A worker process that does not import the script that runs here."""

    def start(self) -> None:
        """Start the process with Ctrl-C blocked: only the parent process handles it, and ends the workers."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            with interrupts_blocked():
                super().start()
        finally:
            sys.modules["__main__"] = main


class Worker:
    """A process that computes chunks in the order in which they are sent.

    Only the worker holds its end of the pipe, so that a half-sent result ends when the worker dies.
    `concurrent.futures` loses every chunk in progress when one worker dies, and leaves its workers running
    when this process is killed.
    """

    def __init__(self, work: ChunkRunner) -> None:
        self.sent: deque[Pending] = deque()
        self.has_begun = False
        self.connection, its_end = Pipe()
        self.process = _Process(target=_serve, args=(its_end, work), daemon=True)
        with _worker_environment():
            self.process.start()
        its_end.close()

    def send(self, pending: Pending) -> None:
        """Send one more chunk."""
        self.sent.append(pending)
        with suppress(OSError):  # the worker died: waiting for its next result reports that
            self.connection.send(pending.chunk)

    def received(self) -> Iterator[ChunkEnd]:
        """Yield the result that arrived, if any; the first message only announces that the worker has begun.

        Raises EOFError or OSError if the worker died.
        """
        message = self.connection.recv_bytes()
        if self.has_begun:
            yield pickle.loads(message)
        self.has_begun = True

    def end(self) -> int:
        """Kill the worker if it is alive; return its exit status, which is negative for a signal."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        status = self.process.exitcode
        assert status is not None, "it was waited for"
        return status


ENVIRONMENT = {
    VARIABLE: "1",  # the number of torch's threads
    "PYTHONSAFEPATH": "1",  # without modules from the working folder
    "PYTHONWARNINGS": "ignore:resource_tracker",  # after a kill, the tracker warns about what it cleans up
}


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Set the variables in ENVIRONMENT that are unset, for processes that start meanwhile."""
    added = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _serve(connection: Connection, work: ChunkRunner) -> None:
    """Compute chunks in a worker, which prints to standard error and ends with its parent process."""
    os.dup2(2, 1)
    Thread(target=_end_with_parent, daemon=True).start()
    chunks: SimpleQueue[bytes] = SimpleQueue()
    # In a thread, so that the sender of a chunk does not have to wait for the previous result.
    Thread(target=_receive, args=(connection, chunks), daemon=True).start()
    connection.send_bytes(BEGUN)
    while True:
        result = attempted(work, pickle.loads(chunks.get()))
        try:
            message = ForkingPickler.dumps(result)
        except Exception as error:  # the result cannot be pickled, for whatever reason
            message = ForkingPickler.dumps(Died.of(error))
        with suppress(OSError):  # the main process has ended, and this process will end too
            connection.send_bytes(message)


def _receive(connection: Connection, chunks: "SimpleQueue[bytes]") -> None:
    with suppress(EOFError, OSError):  # the main process ended this worker
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
    """Yield each chunk with its result, in order of completion. `work` must be a module-level function.

    Each worker has one torch thread, unless OMP_NUM_THREADS is set, and at most two chunks. Closing the
    iterator, or any exception, stops the workers immediately. Raises RunError if no worker can be started.
    """
    pool = Workers(Queue(chunks), work)
    try:
        # At most one worker per chunk, because starting a worker takes a core about a second.
        for pending in islice(iter(pool.queue.take, None), workers):
            pool.start().send(pending)
        while pool.feed():
            yield from pool.results()
    finally:
        for worker in pool.workers:
            worker.end()


class Workers:
    """The living workers, and the chunks that no worker has received yet."""

    def __init__(self, queue: Queue, work: ChunkRunner) -> None:
        self.queue, self.work = queue, work
        self.workers: list[Worker] = []
        self.failed_starts = 0

    def start(self) -> Worker:
        """Start one more worker."""
        self.workers.append(Worker(self.work))
        return self.workers[-1]

    def feed(self) -> bool:
        """Hand out chunks, one to every worker before any gets two; return True if a worker is busy."""
        for level in range(1, CHUNKS_EACH + 1):
            for worker in self.workers:
                if len(worker.sent) < level and (pending := self.queue.take()) is not None:
                    worker.send(pending)
        return any(worker.sent for worker in self.workers)

    def results(self) -> Iterator[tuple[Chunk, ChunkEnd]]:
        """Wait for a worker; yield each finished chunk with its result."""
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
                raise RunError(f"workers: none could be started (the last one {ending})")
        else:
            self.failed_starts = 0
            yield from self.queue.finished(lost.pop(0), Died(f"its worker {ending}"))
        for pending in reversed(lost):
            self.queue.put_back(pending)
        self.start()


def ended(status: int) -> str:
    """Describe how a process ended, judging by its exit status."""
    if status >= 0:
        return f"ended with exit status {status}"
    names = {signal.value: signal.name for signal in Signals}  # real-time signals mostly have no names
    return f"was killed by {names.get(-status, f'signal {-status}')}"


FEWEST_JOBS, MOST_JOBS = 16, 1024
FIRST_JOBS = 1, 256
SECONDS_A_CHUNK, SECONDS_A_CHUNK_TOGETHER = 1.0, 4.0
"""Seconds per chunk; the second number is for texts that a model reads, which are much faster together."""
FIRST_CHUNK_SHARE = 0.25
MAX_GROWTH = 4
JOBS_A_LOOKUP = 256
JOBS_A_WINDOW = 4096

Executor = Callable[[Iterable[Chunk], ChunkRunner], Iterator[tuple[Chunk, ChunkEnd]]]
"""Takes chunks as it needs them and yields each with its result, in any order.

A chunk is retried in halves if its worker died or its work raised an error; a chunk of one run that fails
every time comes back with Died.
"""


def _length(job: Job) -> int:
    """Estimate the number of words in a sentence by counting its spaces, which is quick."""
    return job.prompt.text.count(" ") if job.prompt is not None else 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block, so that every stored run is also counted."""
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
    """Runs one batch into a store that knows the plan:

    `num_runs` runs in all, `num_done_before` of them complete.

    `num_workers` workers take chunks of about `seconds_a_chunk`; a job takes about `seconds_a_job`, if that
    is known. `on_errors` gets the name of each run that failed or did not meet an expectation, with the lines
    to print; `on_progress` gets the numbers of runs in all, done before, done now and failed now.
    """

    plan: Plan
    keys: RunKeys
    store: Store
    _: KW_ONLY
    num_runs: int
    num_done_before: int
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
        wanted = int(FIRST_CHUNK_SHARE * self.seconds_a_chunk / max(self.seconds_a_job, 1e-9))
        self._jobs_a_chunk = max(fewest, min(most, wanted))
        self._jobs_left = self.plan.num_jobs

    @property
    def stopped(self) -> bool:
        """True if fail_fast ends the batch early."""
        return self.fail_fast and bool(self.failed or self.broken)

    def run(self, executor: Executor) -> None:
        """Compute every run that is not done.

        With fail_fast, stop when a run fails or does not meet an expectation.
        """
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
            # End the workers now, rather than when the iterator is garbage-collected.
            if hasattr(results, "close"):
                results.close()

    def _show_progress(self) -> None:
        self.on_progress(self.num_runs, self.num_done_before, self.done, self.failed)

    def _chunks(self) -> Iterator[Chunk]:
        """Yield chunks of unfinished jobs, each a few seconds' work, with smaller chunks towards the end.

        A few thousand jobs at a time are sorted by length, because jobs of equal length are computed
        together. The longest jobs come first, so that no worker is left with them at the end.
        """
        undone = self._undone()
        while window := list(islice(undone, JOBS_A_WINDOW)):
            window.sort(key=lambda job: _length(job[0]), reverse=True)
            while window and not self.stopped:
                size = min(self._jobs_a_chunk, self._fair_share(self._jobs_left + len(window)))
                yield self.store.chunk(tuple(window[:size]))
                del window[:size]

    def _fair_share(self, num_left: int) -> int:
        """Return the number of jobs per chunk at which all workers finish at about the same time."""
        if self.num_workers == 1:
            return num_left
        return max(FEWEST_JOBS, num_left // (2 * self.num_workers))

    def _undone(self) -> Iterator[UnfinishedJob]:
        """Yield the jobs that have a run that is not done and does not occur earlier in the plan."""
        jobs = self.plan.jobs()
        while not self.stopped and (some := list(islice(jobs, JOBS_A_LOOKUP))):
            self._jobs_left -= len(some)
            keys = [self.keys.job_keys(job) for job in some]
            planned = self.store.planned([key for run_keys in keys for key in run_keys])
            for job, run_keys in zip(some, keys, strict=True):
                left = tuple(self._keys_left(job, run_keys, planned))
                if any(left):
                    yield job, left

    def _keys_left(
        self, job: Job, keys: Sequence[bytes], planned: Mapping[bytes, tuple[int, bool]]
    ) -> Iterator[bytes | None]:
        """Yield the key of each run to compute, and None for the others; check the completed runs again."""
        for place, (item, key) in enumerate(zip(job.chain, keys, strict=True), start=job.place):
            first, is_done = planned[key]
            if place == first and is_done and self.expectations.conditions:
                self._check(job.name(item), *self.store.values(key))
            yield None if is_done or place != first else key

    def _take(self, chunk: Chunk, result: ChunkResult) -> None:
        """Store a result first, then report it, so that every run reported as done is stored."""
        with _uninterrupted():
            self.store.write(chunk, result)
            self.failed += len(result.errors)
            self.done += len(result.values)
        if result.seconds_a_job:
            # Chunks of small runs grow step by step; a long run is a chunk by itself.
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
