"""Runs a plan: hands chunks of jobs to an executor, and puts every result into the store."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from attncli.batch.chunks import Chunk, ChunkResult, UnfinishedJob, run_chunk
from attncli.batch.conditions import Expectations
from attncli.batch.keys import RunKeys
from attncli.batch.plan import Job, Plan
from attncli.batch.store.columns import FLOAT, Columns
from attncli.batch.store.store import Store

FEWEST_JOBS, MOST_JOBS = 16, 1024
FIRST_JOBS = 16, 256
SECONDS_OF_FIRST_CHUNK, SECONDS_A_CHUNK = 0.25, 1.0
MAX_GROWTH = 4
JOBS_A_LOOKUP = 256
JOBS_A_WINDOW = 4096

# Chunks and the function that computes one -> each chunk with its result, in any order, or why it has none.
Executor = Callable[[Iterable[Chunk], Callable[[Chunk], ChunkResult]], Iterator[tuple[Chunk, Any]]]


def _length(job: Job) -> int:
    """About how many words the sentence has; blanks are quick to count."""
    return job.prompt.sentence.count(" ") if job.prompt is not None else 0


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C to the end, so that what is stored is also counted."""
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

    `num_workers` take its chunks, whose jobs take about `seconds_a_job`, as far as that is known.
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
    fail_fast: bool
    on_errors: Callable[[str, list[str]], None]
    on_progress: Callable[[int, int, int, int], None]
    done: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    broken: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        fewest, most = FIRST_JOBS
        wanted = int(SECONDS_OF_FIRST_CHUNK / max(self.seconds_a_job, 1e-9))
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
        """Jobs that have a run to do, as many together as take about a second; fewer towards the end.

        Among some thousand jobs at a time those of equal length are neighbours, since they are computed
        together, and the longest come first, so that no worker is left with them at the end.
        """
        undone = self._undone()
        while window := list(islice(undone, JOBS_A_WINDOW)):
            window.sort(key=lambda job: _length(job[0]), reverse=True)
            while window and not self.stopped:
                size = min(self._jobs_a_chunk, self._fair_share(self._jobs_left + len(window)))
                yield Chunk(tuple(window[:size]), rows=self.store.rows, weights=self.store.keeps_weights)
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
        """Store first: what is reported as done is stored."""
        with _uninterrupted():
            self.store.write(chunk, result)
            self.failed += len(result.errors)
            self.done += len(result.values)
        if result.seconds_a_job:
            # Chunks grow step by step for small runs; one run that takes long is its own chunk.
            wanted = int(SECONDS_A_CHUNK / result.seconds_a_job)
            self._jobs_a_chunk = max(1, min(wanted, MAX_GROWTH * self._jobs_a_chunk, MOST_JOBS))
        if result.errors or self.expectations.conditions:
            for number, run in chunk.runs().items():
                if number in result.errors:
                    self.on_errors(run.job.name(run.item), result.errors[number].splitlines())
                else:
                    self._check(run.job.name(run.item), *result.values[number])
        self._show_progress()

    def _check(self, name: str, columns: Columns, values: bytes) -> None:
        if broken := self.expectations.broken(columns, np.frombuffer(values, FLOAT)):
            self.broken += 1
            self.on_errors(name, broken)
