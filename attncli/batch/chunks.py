"""A chunk of jobs, which is what an engine hands to a worker, and what comes back of it."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from attncli.batch.plan import Item, Job
from attncli.batch.serial import run_items
from attncli.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from attncli.batch.figures import Columns
    from attncli.report import Report

DONE, FAILED = "done", "failed"

JOBS_AT_ONCE = 64
"""Whose reports are in memory at the same time: figures are made of them, and they are gone."""


@dataclass(frozen=True)
class Chunk:
    """Jobs that go to a worker together, with the keys of their runs, and what is to be kept of each."""

    jobs: tuple[Job, ...]
    keys: tuple[tuple[bytes, ...], ...]
    rows: bool = False
    weights: bool = False

    def __len__(self) -> int:
        return len(self.jobs)

    def split(self) -> list["Chunk"]:
        """Its halves, for another try after a worker died."""
        half = len(self.jobs) // 2
        parts = (slice(None, half), slice(half, None))
        return [replace(self, jobs=self.jobs[part], keys=self.keys[part]) for part in parts]

    def runs(self) -> Iterator[tuple[Job, Item, bytes, int]]:
        """Each run: its job, its experiment, its key and its place in the plan."""
        for job, keys in zip(self.jobs, self.keys, strict=True):
            for number, (item, key) in enumerate(zip(job.chain, keys, strict=True)):
                yield job, item, key, job.place + number


class Outcome(NamedTuple):
    """One run as it ended: figures by the columns of that number in its ChunkResult, or what went wrong."""

    status: str
    error: str | None = None
    columns: int | None = None
    figures: "np.ndarray | None" = None
    weights: "np.ndarray | None" = None


class ChunkResult(NamedTuple):
    """The outcomes of a chunk's runs, in their order, the columns and versions they share, and the time."""

    outcomes: list[Outcome]
    columns: "list[Columns]"
    environment: dict[str, str]
    seconds: float


def failed_chunk(chunk: Chunk, error: str) -> ChunkResult:
    """The result of a chunk that a worker could not give."""
    return ChunkResult([Outcome(FAILED, error) for _ in chunk.runs()], [], {}, 0.0)


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Compute every run of a chunk; an error of the user's is its run's outcome, and the others go on."""
    begun = time.perf_counter()
    environment: dict[str, str] = {}
    numbers: dict[Columns, int] = {}
    outcomes: list[Outcome] = []
    for start in range(0, len(chunk), JOBS_AT_ONCE):
        results = _results(chunk.jobs[start : start + JOBS_AT_ONCE])
        outcomes += _outcomes(results, chunk, numbers, environment)
    return ChunkResult(outcomes, list(numbers), environment, time.perf_counter() - begun)


def _results(jobs: Sequence[Job]) -> "list[Report | UserError]":
    """For each run of the jobs its report, or why there is none; jobs of one run go together."""
    from attncli.experiments.together import run_together

    chains = [job.items() for job in jobs]
    together = iter(run_together([chain[0].spec for chain in chains if len(chain) == 1]))
    of_jobs = ([next(together)] if len(chain) == 1 else _chain_results(chain) for chain in chains)
    return [result for of_job in of_jobs for result in of_job]


def _chain_results(chain: Sequence[Item]) -> "list[Report | UserError]":
    results: list[Report | UserError] = []
    for report in run_items(chain, lambda _, error: results.append(error)):
        results.append(report)
    return results


def _outcomes(
    results: "Sequence[Report | UserError]",
    chunk: Chunk,
    numbers: "dict[Columns, int]",
    environment: dict[str, str],
) -> Iterator[Outcome]:
    """The figures of reports and the texts of errors; new columns get the next number, versions are noted."""
    from attncli.batch.figures import figures_of

    reports = [result for result in results if not isinstance(result, UserError)]
    figures = iter(figures_of(reports, rows=chunk.rows))
    for result in results:
        if isinstance(result, UserError):
            yield Outcome(FAILED, "\n".join(result.lines))
            continue
        environment.update(result.environment)
        columns, values = next(figures)
        weights = result.tensors.get("weights") if chunk.weights else None
        yield Outcome(
            DONE,
            columns=numbers.setdefault(columns, len(numbers)),
            figures=values,
            weights=weights.values if weights is not None else None,
        )
