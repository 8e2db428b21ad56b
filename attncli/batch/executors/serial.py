"""One chunk after the other, in this process."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from attncli.batch.executors.failures import C, Died, Queue, died_of

R = TypeVar("R")


def run_chunks(chunks: Iterable[C], work: Callable[[C], R]) -> Iterator[tuple[C, R | Died]]:
    """Each chunk with its result, in order. What kills this process kills the batch."""
    queue = Queue.of(chunks)
    while (pending := queue.take()) is not None:
        try:
            result = work(pending.chunk)
        except Exception as error:  # one run's mistake, whatever it is, is no reason to lose the others
            died = queue.failed(pending, died_of(error))
            if died is not None:
                yield pending.chunk, died
            continue
        yield pending.chunk, result
