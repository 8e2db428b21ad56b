"""A chunk of jobs, which is what an executor hands to a worker, and what comes back of it."""

import time
from collections.abc import Iterator, Mapping, Sequence
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


class Numbered:
    """The columns that the runs of a chunk share, each with its number, and the versions that made them."""

    def __init__(self) -> None:
        self.columns: dict[Columns, int] = {}
        self.environment: dict[str, str] = {}
        self._last: tuple[Columns, int] | None = None

    def number(self, columns: "Columns", environment: Mapping[str, str]) -> int:
        """The number of these columns; runs of a bucket share the very tuple, and need no look-up."""
        if self._last is None or self._last[0] is not columns:
            self.environment |= environment
            self._last = (columns, self.columns.setdefault(columns, len(self.columns)))
        return self._last[1]


def failed_chunk(chunk: Chunk, error: str) -> ChunkResult:
    """The result of a chunk that a worker could not give."""
    return ChunkResult([Outcome(FAILED, error) for _ in chunk.runs()], [], {}, 0.0)


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Compute every run of a chunk; an error of the user's is its run's outcome, and the others go on.

    Jobs of one run are computed in buckets: no more reports than those of a bucket are in memory.
    """
    from attncli.experiments.together import run_in_buckets

    begun = time.perf_counter()
    numbered = Numbered()
    outcomes: dict[int, list[Outcome]] = {}
    chains = [job.items() for job in chunk.jobs]
    alone = [i for i, chain in enumerate(chains) if len(chain) == 1]
    for bucket in run_in_buckets([chains[i][0].spec for i in alone]):
        found = _outcomes(list(bucket.values()), chunk, numbered)
        outcomes |= {alone[place]: [outcome] for place, outcome in zip(bucket, found, strict=True)}
    for i, chain in enumerate(chains):
        if len(chain) > 1:
            outcomes[i] = list(_outcomes(_chain_results(chain), chunk, numbered))
    in_order = [outcome for i in range(len(chains)) for outcome in outcomes[i]]
    seconds = time.perf_counter() - begun
    return ChunkResult(in_order, list(numbered.columns), numbered.environment, seconds)


def _chain_results(chain: Sequence[Item]) -> "list[Report | UserError]":
    results: list[Report | UserError] = []
    for report in run_items(chain, lambda _, error: results.append(error)):
        results.append(report)
    return results


def _outcomes(
    results: "Sequence[Report | UserError]", chunk: Chunk, numbered: "Numbered"
) -> Iterator[Outcome]:
    """The figures of reports, and the texts of errors."""
    from attncli.batch.figures import figures_of

    reports = [result for result in results if not isinstance(result, UserError)]
    figures = iter(figures_of(reports, rows=chunk.rows))
    for result in results:
        if isinstance(result, UserError):
            yield Outcome(FAILED, "\n".join(result.lines))
            continue
        columns, values = next(figures)
        weights = result.tensors.get("weights") if chunk.weights else None
        yield Outcome(
            DONE,
            columns=numbered.number(columns, result.environment),
            figures=values,
            weights=weights.values if weights is not None else None,
        )
