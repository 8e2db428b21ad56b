"""A chunk of jobs, which is what an executor hands to a worker, and what comes back of it."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from attncli.batch.plan import Item, Job
from attncli.batch.serial import run_items
from attncli.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from attncli.batch.figures import FigureTable
    from attncli.report import Report

DONE, FAILED = "done", "failed"


class Run(NamedTuple):
    """One experiment of a job, its key and its place in the plan."""

    job: Job
    item: Item
    key: bytes
    place: int


@dataclass(frozen=True)
class Chunk:
    """Jobs that go to a worker together, with the keys of their runs, and what is to be kept of each.

    A run without a key is computed only because others draw on from it: it is done, or stands elsewhere.
    """

    jobs: tuple[Job, ...]
    keys: tuple[tuple[bytes | None, ...], ...]
    rows: bool = False
    weights: bool = False

    def __len__(self) -> int:
        return len(self.jobs)

    @property
    def num_runs(self) -> int:
        """How many runs its jobs have together."""
        return sum(map(len, self.keys))

    def split(self) -> list["Chunk"]:
        """Its halves, for another try after a worker died."""
        half = len(self.jobs) // 2
        parts = (slice(None, half), slice(half, None))
        return [replace(self, jobs=self.jobs[part], keys=self.keys[part]) for part in parts]

    def runs(self) -> dict[int, Run]:
        """The runs that are to be kept, by their number."""
        each = (
            (job, item, key, job.place + number)
            for job, keys in zip(self.jobs, self.keys, strict=True)
            for number, (item, key) in enumerate(zip(job.chain, keys, strict=True))
        )
        return {
            number: Run(job, item, key, place)
            for number, (job, item, key, place) in enumerate(each)
            if key is not None
        }


class ChunkResult(NamedTuple):
    """What became of a chunk's runs, by their number in it, the versions that made them, and how long
    a run took (0 where that is not known).

    Runs of the same columns stand in one table; a run to be kept is in a table or among the errors.
    """

    tables: "list[FigureTable]"
    errors: dict[int, str]
    weights: "dict[int, np.ndarray]"
    environment: dict[str, str]
    seconds_a_run: float

    @property
    def num_done(self) -> int:
        """How many runs have their figures."""
        return sum(len(table.places) for table in self.tables)


def failed_chunk(chunk: Chunk, error: str) -> ChunkResult:
    """The result of a chunk that a worker could not give."""
    return ChunkResult([], dict.fromkeys(chunk.runs(), error), {}, {}, 0.0)


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Compute every run of a chunk; an error of the user's is its run's outcome, and the others go on.

    Jobs of one run are computed in buckets: no more reports than those of a bucket are in memory.
    """
    from attncli.experiments.together import run_in_buckets

    found = _Found(chunk, chunk.runs().keys())
    chains = [job.items() for job in chunk.jobs]
    firsts = list(accumulate(map(len, chains), initial=0))
    alone = [i for i, chain in enumerate(chains) if len(chain) == 1]
    for bucket in run_in_buckets([chains[i][0].spec for i in alone]):
        found.add({firsts[alone[place]]: result for place, result in bucket.items()})
    for first, chain in zip(firsts, chains, strict=False):
        if len(chain) > 1:
            found.add(dict(enumerate(_chain_results(chain), start=first)))
    return found.result()


def _chain_results(chain: Sequence[Item]) -> "list[Report | UserError]":
    results: list[Report | UserError] = []
    for report in run_items(chain, lambda _, error: results.append(error)):
        results.append(report)
    return results


@dataclass
class _Found:
    """What is kept of the runs of a chunk that are done so far."""

    chunk: Chunk
    wanted: Collection[int]
    tables: "dict[int, list[FigureTable]]" = field(default_factory=dict)  # by their columns' identity
    errors: dict[int, str] = field(default_factory=dict)
    weights: "dict[int, np.ndarray]" = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    times: list[tuple[float, int]] = field(default_factory=lambda: [(time.perf_counter(), 0)])
    """The beginning and when each part was done, with how many runs were done by then."""

    def add(self, results: "Mapping[int, Report | UserError]") -> None:
        """Take the figures of reports, and the texts of errors."""
        from attncli.batch.figures import figure_tables

        reports: dict[int, Report] = {}
        for number, result in results.items():
            if number not in self.wanted:
                continue
            if isinstance(result, UserError):
                self.errors[number] = "\n".join(result.lines)
            else:
                reports[number] = result
        numbers = list(reports)
        for table in figure_tables(list(reports.values()), rows=self.chunk.rows):
            own = table._replace(places=[numbers[place] for place in table.places])
            self.tables.setdefault(id(table.columns), []).append(own)
            self.environment |= reports[own.places[0]].environment
        if self.chunk.weights:
            for number, report in reports.items():
                if "weights" in report.tensors:
                    self.weights[number] = report.tensors["weights"].values
        self.times.append((time.perf_counter(), self.times[-1][1] + len(results)))

    def result(self) -> ChunkResult:
        """All of it, with one table for all runs of the same columns."""
        from attncli.batch.figures import joined

        tables = [joined(tables) for tables in self.tables.values()]
        return ChunkResult(tables, self.errors, self.weights, self.environment, self._seconds_a_run())

    def _seconds_a_run(self) -> float:
        """Without the first of several parts, which may have imported torch and loaded a model."""
        (began, before), (ended, done) = self.times[1 if len(self.times) > 2 else 0], self.times[-1]
        return (ended - began) / max(1, done - before)
