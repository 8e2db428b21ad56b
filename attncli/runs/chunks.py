"""A chunk of jobs, which an executor hands to a worker, and its result."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UserError
from attncli.runs.plan import Chain, Item, Job
from attncli.runs.report_values import FLOAT, Columns
from attncli.runs.runner import run_items

if TYPE_CHECKING:
    import numpy as np

    from attncli.report import Report


DONE, FAILED = "done", "failed"


class Run(NamedTuple):
    """One experiment of a job, with its key and its place in the plan."""

    job: Job
    item: Item
    key: bytes
    place: int


UnfinishedJob = tuple[Job, tuple[bytes | None, ...]]
"""A job and the keys of its runs. A run without a key is computed only because later runs continue its
generator: it is done already, or belongs to another place in the plan."""


@dataclass(frozen=True)
class Chunk:
    """Jobs that go to a worker together, and what to keep besides the statistics."""

    jobs: tuple[UnfinishedJob, ...]
    rows: bool = False
    weights: bool = False

    def __len__(self) -> int:
        return len(self.jobs)

    def split(self) -> list["Chunk"]:
        """Its halves, for another try after a worker died."""
        half = len(self.jobs) // 2
        return [replace(self, jobs=part) for part in (self.jobs[:half], self.jobs[half:])]

    def runs(self) -> dict[int, Run]:
        """The runs to keep, by their number in the chunk."""
        each = (
            None if key is None else Run(job, item, key, place)
            for job, keys in self.jobs
            for place, (item, key) in enumerate(zip(job.chain, keys, strict=True), start=job.place)
        )
        return {number: run for number, run in enumerate(each) if run is not None}


@dataclass
class ChunkResult:
    """The outcomes of the runs to keep, by their number in the chunk: statistics or an error.

    Statistics are columns and their values, as FLOAT. `environment` holds the versions that computed them;
    `seconds_a_job` is how long a job took (0 where that is not known).
    """

    values: dict[int, tuple[Columns, bytes]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    weights: "dict[int, np.ndarray]" = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    seconds_a_job: float = 0.0


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Compute every run of a chunk; a UserError is the outcome of its run, and the other runs continue."""
    result, wanted = ChunkResult(), chunk.runs().keys()
    # The start, then the end of each part with the number of runs done by then.
    times = [(time.perf_counter(), 0)]
    for outcomes in _outcomes([job.items() for job, _ in chunk.jobs]):
        _keep(chunk, {number: found for number, found in outcomes.items() if number in wanted}, result)
        times.append((time.perf_counter(), times[-1][1] + len(outcomes)))
    # Without the first of several parts, which may have imported torch and loaded a model.
    (began, before), (ended, done) = times[1 if len(times) > 2 else 0], times[-1]
    result.seconds_a_job = (ended - began) / max(1, done - before) * times[-1][1] / len(chunk)
    return result


def _outcomes(chains: Sequence[Chain]) -> "Iterator[dict[int, Report | UserError]]":
    """The outcome of each run, by its number.

    Chains of one run are computed in buckets: only the reports of one bucket are in memory.
    """
    from attncli.runs.runner import run_in_buckets

    firsts = list(accumulate(map(len, chains), initial=0))
    alone = [i for i, chain in enumerate(chains) if len(chain) == 1]
    for bucket in run_in_buckets([chains[i][0].spec for i in alone]):
        yield {firsts[alone[place]]: outcome for place, outcome in bucket.items()}
    for first, chain in zip(firsts, chains, strict=False):
        if len(chain) > 1:
            yield dict(enumerate(_outcomes_of_chain(chain), start=first))


def _outcomes_of_chain(chain: Chain) -> "list[Report | UserError]":
    outcomes: list[Report | UserError] = []
    for report in run_items(chain, lambda _, error: outcomes.append(error)):
        outcomes.append(report)
    return outcomes


def _keep(chunk: Chunk, outcomes: "Mapping[int, Report | UserError]", result: ChunkResult) -> None:
    """Add the statistics of reports, and the texts of errors."""
    from attncli.runs.report_values import value_tables

    reports = {number: found for number, found in outcomes.items() if not isinstance(found, UserError)}
    numbers = list(reports)
    for columns, places, values in value_tables(list(reports.values()), rows=chunk.rows):
        for place, row in zip(places, values.astype(FLOAT), strict=True):
            result.values[numbers[place]] = (columns, row.tobytes())
    for number, outcome in outcomes.items():
        if isinstance(outcome, UserError):
            result.errors[number] = "\n".join(outcome.lines)
        else:
            result.environment |= outcome.environment
            if chunk.weights and "weights" in outcome.tensors:
                result.weights[number] = outcome.tensors["weights"].values
