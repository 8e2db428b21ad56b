"""A chunk is the work for one worker: some jobs of a plan, whose reports the worker turns into values."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from attncli.errors import UserError
from attncli.records.report import Report
from attncli.records.stored_columns import StoredColumns, with_unshown
from attncli.runs.jobs import Chain, Item, Job
from attncli.runs.keys import TEXT_KEYS
from attncli.runs.report_values import values_of
from attncli.runs.runner import (
    Kept,
    Outcome,
    Values,
    alone_in_buckets,
    load_model,
    run_items,
    values_in_buckets,
)

DONE, FAILED = "done", "failed"


class Run(NamedTuple):
    """One experiment in a job, with its key and its place in the plan."""

    job: Job
    item: Item
    key: bytes
    place: int

    def texts(self) -> tuple[str | None, str | None]:
        """Return the sentence and context that the run reads, each None if the run does not read it."""
        sentence, context = (getattr(self.item.spec, key, None) for key in TEXT_KEYS)
        if (prompt := self.job.prompt) is not None:
            sentence, context = prompt.text, prompt.context or context
        return sentence, context


UnfinishedJob = tuple[Job, tuple[bytes | None, ...]]
"""A job and the keys of its runs. A run without a key is computed only because later runs continue its
generator: such a run is already done, or appears elsewhere in the plan.
"""


@dataclass(frozen=True)
class Chunk:
    """Jobs that go to a worker together. `rows` and `weights` say what to store besides the statistics."""

    jobs: tuple[UnfinishedJob, ...]
    rows: bool = False
    weights: bool = False

    def __len__(self) -> int:
        return len(self.jobs)

    def split(self) -> list["Chunk"]:
        """Return the two halves of the chunk, to be retried after a worker died."""
        half = len(self.jobs) // 2
        return [replace(self, jobs=part) for part in (self.jobs[:half], self.jobs[half:])]

    def runs(self) -> dict[int, Run]:
        """Return the runs to store, by their number in the chunk."""
        each = (
            None if key is None else Run(job, item, key, place)
            for job, keys in self.jobs
            for place, (item, key) in enumerate(zip(job.chain, keys, strict=True), start=job.place)
        )
        return {number: run for number, run in enumerate(each) if run is not None}


@dataclass
class ChunkResult:
    """The outcomes of the runs to store, each either statistics or an error, by their number in the chunk.

    Statistics consist of columns and their values. `environment` holds the versions that computed the
    statistics; `seconds_a_job` is the time that a job takes (0 if unknown).
    """

    values: dict[int, tuple[StoredColumns, np.ndarray]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    weights: dict[int, np.ndarray] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    seconds_a_job: float = 0.0


ChunkRunner = Callable[[Chunk], ChunkResult]


def run_chunk(chunk: Chunk) -> ChunkResult:
    """Compute every run of a chunk.

    If a run raises UserError, the error is its outcome, and the other runs continue.
    """
    result, wanted = ChunkResult(), chunk.runs()
    # Importing and loading do not count towards the time of a run.
    load_model(next(iter(wanted.values())).item.spec)
    # The start time, then the end time of each part with the number of runs done by then.
    times = [(time.perf_counter(), 0)]
    parts = Kept(rows=chunk.rows, weights=chunk.weights)
    for outcomes in _outcomes([job.items() for job, _ in chunk.jobs], parts):
        _keep(chunk, {number: outcome for number, outcome in outcomes.items() if number in wanted}, result)
        times.append((time.perf_counter(), times[-1][1] + len(outcomes)))
    # The first of several parts does not count, because it tries out the model.
    (began, before), (ended, done) = times[1 if len(times) > 2 else 0], times[-1]
    result.seconds_a_job = (ended - began) / max(1, done - before) * times[-1][1] / len(chunk)
    return result


def _outcomes(chains: Sequence[Chain], parts: Kept) -> Iterator[Mapping[int, Outcome | Values]]:
    """Yield the outcomes of runs by their number, one bucket or one chain at a time."""
    firsts = list(accumulate(map(len, chains), initial=0))
    for bucket in alone_in_buckets(chains, partial(values_in_buckets, kept=parts)):
        yield {firsts[place]: outcome for place, outcome in bucket.items()}
    for first, chain in zip(firsts, chains, strict=False):
        if len(chain) > 1:
            yield dict(enumerate(_chain_outcomes(chain), start=first))


def _chain_outcomes(chain: Chain) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for report in run_items(chain, lambda _, error: outcomes.append(error)):
        outcomes.append(report)
    return outcomes


def _keep(chunk: Chunk, outcomes: Mapping[int, Outcome | Values], result: ChunkResult) -> None:
    """Add the statistics of runs, and the messages of errors, to the result."""
    by_columns: dict[int, dict[int, Values]] = {}
    for number, outcome in outcomes.items():
        if isinstance(outcome, UserError):
            result.errors[number] = "\n".join(outcome.lines)
            continue
        values = outcome if isinstance(outcome, Values) else _report_values(chunk, outcome)
        result.environment |= values.environment
        by_columns.setdefault(id(values.columns), {})[number] = values
        if values.weights is not None:
            result.weights[number] = values.weights
    for alike in by_columns.values():
        columns = next(iter(alike.values())).columns
        result.values |= {number: (columns, outcome.numbers) for number, outcome in alike.items()}


def _report_values(chunk: Chunk, report: Report) -> Values:
    """Return the values of a report, with its weights if the chunk stores them."""
    columns, numbers = values_of(report, rows=chunk.rows)
    weights = report.tensors.get("weights") if chunk.weights else None
    environment = {**report.environment, **with_unshown(report.missing or "")}
    return Values(columns, numbers, environment, None if weights is None else weights.values)
