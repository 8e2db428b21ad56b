"""The reports of experiments in order, computed in this process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from attncli.batch.plan import Chain, Item, Job
from attncli.errors import RunError, UserError
from attncli.report import Report
from attncli.running.session import Session
from attncli.running.together import run_in_buckets

CONTINUED_NOTE = "Draws go on from the step before, on one generator."

if TYPE_CHECKING:
    from attncli.experiments.draws import Progress

OnFailure = Callable[[Item, UserError], None]


def run_items(
    items: Iterable[Item], on_failure: OnFailure, progress: "Progress | None" = None
) -> Iterator[Report]:
    """The report of each experiment as it is done; a failed one is left out, and passed to `on_failure`.

    A step that would continue from a failed one fails too: it would sample other numbers than asked for.
    """
    return (report for _, report in _one_by_one(items, on_failure, progress))


def run_jobs(
    jobs: Iterable[Job],
    on_failure: OnFailure,
    progress: "Progress | None" = None,
    *,
    stopped: Callable[[], bool] = lambda: False,
    num_together: int = 1,
) -> Iterator[tuple[Item, Report]]:
    """Each experiment of a plan with its report, in the order of the plan, with failures as in `run_items`.

    Among `num_together` jobs at a time, those of one experiment are computed together: only their reports are
    in memory. Once `stopped` is true, nothing more is yielded.
    """
    jobs = iter(jobs)
    while window := list(islice(jobs, num_together)):
        for chain, result in _together([job.items() for job in window]):
            if result is None:
                yield from _one_by_one((item for item in chain if not stopped()), on_failure, progress)
            elif stopped():
                return
            elif isinstance(result, UserError):
                on_failure(chain[0], result)
            else:
                yield chain[0], result
        if stopped():
            return


def _together(chains: Sequence[Chain]) -> Iterator[tuple[Chain, Report | UserError | None]]:
    """Each chain with its outcome if it was computed together with others, or None if it has to run alone."""
    alone = [place for place, chain in enumerate(chains) if len(chain) == 1]
    results: dict[int, Report | UserError] = {}
    if len(alone) > 1:
        for bucket in run_in_buckets([chains[place][0].spec for place in alone]):
            results |= {alone[number]: result for number, result in bucket.items()}
    for place, chain in enumerate(chains):
        yield chain, results.pop(place, None)


def _one_by_one(
    items: Iterable[Item], on_failure: OnFailure, progress: "Progress | None"
) -> Iterator[tuple[Item, Report]]:
    session = Session(progress)
    broken = False
    for item in items:
        if item.starts_file:
            session = Session(progress)
        broken = broken and not item.reseed
        try:
            if broken:
                raise RunError("skipped: it continues from a step that failed (give it a seed of its own)")
            report = session.run(item.spec, reseed=item.reseed)
        except UserError as error:
            broken = True
            on_failure(item, error)
            continue
        if not item.reseed:
            report = replace(report, notes=(*report.notes, CONTINUED_NOTE))
        yield item, report
