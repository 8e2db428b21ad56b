"""One chunk after another, in this process."""

from collections.abc import Iterable, Iterator

from attncli.batch.chunks import Chunk
from attncli.batch.executors.failures import Queue, Result, Work, attempted


def run_chunks(chunks: Iterable[Chunk], work: Work) -> Iterator[tuple[Chunk, Result]]:
    """Each chunk with its result, in order. What kills this process kills the batch."""
    queue = Queue(chunks)
    while (pending := queue.take()) is not None:
        yield from queue.finished(pending, attempted(work, pending.chunk))
