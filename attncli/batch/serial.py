"""One experiment after the other, in this process."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from attncli.batch.plan import Item
from attncli.errors import RunError, UserError
from attncli.experiments.session import Session
from attncli.report import Report

CONTINUED_NOTE = "Draws go on from the step before, on one generator."


def run_items(
    items: Iterable[Item],
    on_failure: Callable[[Item, UserError], None],
    progress: Callable[[float], None] | None = None,
) -> Iterator[Report]:
    """The report of each experiment as it is done; a failed one is handed to `on_failure` and left out.

    A step that would go on from a failed one fails, too: its draws would be others than asked for.
    """
    session = Session(progress)
    broken = False
    for item in items:
        if item.starts_file:
            session = Session(progress)
        broken = broken and not item.reseed
        try:
            if broken:
                raise RunError("skipped: it goes on from a step that failed (give it a seed of its own)")
            report = session.run(item.spec, reseed=item.reseed)
        except UserError as error:
            broken = True
            on_failure(item, error)
            continue
        yield report if item.reseed else replace(report, notes=(*report.notes, CONTINUED_NOTE))
