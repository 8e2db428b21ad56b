"""Runs a plan and keeps every finished run: chunks to an executor, what comes back into the store."""

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from attncli.batch.chunks import Chunk, ChunkResult, JobLeft, failed_chunk, run_chunk
from attncli.batch.expectations import Expectations
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

# Chunks and what computes one -> each chunk with what it gave, in any order, or why its worker could not.
Executor = Callable[[Iterable[Chunk], Callable[[Chunk], ChunkResult]], Iterator[tuple[Chunk, Any]]]


def _length(job: Job) -> int:
    """About how many words a sentence has; the blanks are quick to count."""
    return job.prompt.sentence.count(" ") if job.prompt is not None else 0


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until this is done: what is kept is counted, too."""
    asked = False

    def note(*_: object) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


class Driver:
    """One batch into one store, which has taken its plan: `num_runs`, and `num_done` of these done.

    `num_workers` take chunks from it, of jobs that take about `seconds_a_job`, as far as that is known.
    `tell` gets the name of each run that failed, or did not meet an expectation, with lines that say why;
    `on_progress` how many runs there are, were done before, are done now, and failed now.
    """

    def __init__(
        self,
        plan: Plan,
        keys: RunKeys,
        store: Store,
        *,
        num_runs: int,
        num_done: int,
        expectations: Expectations,
        num_workers: int = 1,
        seconds_a_job: float = 0.0,
        fail_fast: bool,
        tell: Callable[[str, list[str]], None],
        on_progress: Callable[[int, int, int, int], None],
    ) -> None:
        self.plan, self.keys, self.store = plan, keys, store
        self.expectations = expectations
        self.fail_fast = fail_fast
        self.tell, self.on_progress = tell, on_progress
        self.num_runs, self.kept = num_runs, num_done
        self.done = self.failed = self.broken = 0
        self._num_workers = num_workers
        self._jobs_left = plan.num_jobs
        fewest, most = FIRST_JOBS
        self._jobs_a_chunk = max(fewest, min(most, int(SECONDS_OF_FIRST_CHUNK / max(seconds_a_job, 1e-9))))

    @property
    def stopped(self) -> bool:
        """Whether it ends here, with runs left: asked to, and something went wrong."""
        return self.fail_fast and bool(self.failed or self.broken)

    def run(self, executor: Executor) -> None:
        """Every run that is not done yet; with fail_fast until one fails or does not meet an expectation."""
        self._show_progress()
        results = executor(self._chunks(), run_chunk)
        try:
            for chunk, result in results:
                self._take(
                    chunk, result if isinstance(result, ChunkResult) else failed_chunk(chunk, result.reason)
                )
                if self.stopped:
                    break
        finally:
            # Workers end now, not when somebody collects the iterator.
            if hasattr(results, "close"):
                results.close()

    def _show_progress(self) -> None:
        self.on_progress(self.num_runs, self.kept, self.done, self.failed)

    def _chunks(self) -> Iterator[Chunk]:
        """The jobs that have a run to do, as many together as take about a second; fewer towards the end.

        Of some thousand jobs at a time those of equal length come next to each other, since they are computed
        together, and the longest first, so that no worker is left with them.
        """
        undone = self._undone()
        while window := list(islice(undone, JOBS_A_WINDOW)):
            window.sort(key=lambda job: _length(job[0]), reverse=True)
            while window and not self.stopped:
                size = min(self._jobs_a_chunk, self._fair_share(self._jobs_left + len(window)))
                yield Chunk(tuple(window[:size]), rows=self.store.rows, weights=self.store.keeps_weights)
                del window[:size]

    def _fair_share(self, num_left: int) -> int:
        """So many jobs that several workers end at about the same time."""
        if self._num_workers == 1:
            return num_left
        return max(FEWEST_JOBS, num_left // (2 * self._num_workers))

    def _undone(self) -> Iterator[JobLeft]:
        """The jobs with a run that is neither done nor stands in the plan before."""
        jobs = self.plan.jobs()
        while not self.stopped and (some := list(islice(jobs, JOBS_A_LOOKUP))):
            self._jobs_left -= len(some)
            keys = [self.keys.of_job(job) for job in some]
            planned = self.store.planned([key for of_job in keys for key in of_job])
            for job, of_job in zip(some, keys, strict=True):
                left = tuple(self._left(job, of_job, planned))
                if any(left):
                    yield job, left

    def _left(
        self, job: Job, keys: Sequence[bytes], planned: Mapping[bytes, tuple[int, bool]]
    ) -> Iterator[bytes | None]:
        """The keys of the runs that are to be done here; what is expected must hold of the others, too."""
        for place, (item, key) in enumerate(zip(job.chain, keys, strict=True), start=job.place):
            first, is_done = planned[key]
            if place == first and is_done and self.expectations.conditions:
                self._check(job.name(item), *self.store.figures(key))
            yield None if is_done or place != first else key

    def _take(self, chunk: Chunk, result: ChunkResult) -> None:
        """Into the store first: what is told is there."""
        with uninterrupted():
            self.store.write(chunk, result)
            self.failed += len(result.errors)
            self.done += len(result.figures)
        self._learn(result.seconds_a_job)
        if result.errors or self.expectations.conditions:
            for number, run in chunk.runs().items():
                if number in result.errors:
                    self.tell(run.job.name(run.item), result.errors[number].splitlines())
                else:
                    self._check(run.job.name(run.item), *result.figures[number])
        self._show_progress()

    def _check(self, name: str, columns: Columns, figures: bytes) -> None:
        if broken := self.expectations.broken(columns, np.frombuffer(figures, FLOAT)):
            self.broken += 1
            self.tell(name, broken)

    def _learn(self, seconds_a_job: float) -> None:
        """Larger chunks for small runs, step by step; one run that takes long is a chunk of its own."""
        if seconds_a_job:
            wanted = int(SECONDS_A_CHUNK / seconds_a_job)
            self._jobs_a_chunk = max(1, min(wanted, MAX_GROWTH * self._jobs_a_chunk, MOST_JOBS))
