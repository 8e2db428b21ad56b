"""What happens to a chunk that failed: it is split in halves until the run to blame is alone."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from traceback import format_exception
from typing import NamedTuple

from attncli.batch.chunks import Chunk, ChunkResult

MAX_ATTEMPTS_ALONE = 3
"""A worker may die for other reasons than its run: memory taken by a neighbour, a machine switched off."""

Work = Callable[[Chunk], ChunkResult]


@dataclass(frozen=True)
class Died:
    """Why the run in a chunk of one has no result; with a traceback if the work raised an error."""

    reason: str
    traceback: str = ""

    @classmethod
    def of(cls, error: Exception) -> "Died":
        """`ValueError: what was wrong`, and where."""
        message = "; ".join(str(error).splitlines())
        name = type(error).__name__
        return cls(f"{name}: {message}" if message else name, "".join(format_exception(error)))


Result = ChunkResult | Died


def attempted(work: Work, chunk: Chunk) -> Result:
    """The result of the work, or what it raised: one failing run must not lose the others."""
    try:
        return work(chunk)
    except Exception as error:
        return Died.of(error)


class Pending(NamedTuple):
    """A chunk to compute, and how often it has failed so far."""

    chunk: Chunk
    failures: int = 0


class Queue:
    """The chunks that no worker has: those to try again, then those of the plan, pulled one by one."""

    def __init__(self, chunks: Iterable[Chunk], max_attempts_alone: int = MAX_ATTEMPTS_ALONE) -> None:
        self._chunks = iter(chunks)
        self._max_attempts_alone = max_attempts_alone
        self._again: deque[Pending] = deque()

    def take(self) -> Pending | None:
        """The next chunk, or None where all are taken (one that is being computed may still come back)."""
        if self._again:
            return self._again.popleft()
        chunk = next(self._chunks, None)
        return None if chunk is None else Pending(chunk)

    def put_back(self, pending: Pending) -> None:
        """Return a chunk that its worker never started."""
        self._again.appendleft(pending)

    def finished(self, pending: Pending, result: Result) -> Iterator[tuple[Chunk, Result]]:
        """The chunk with its result; nothing if it failed and will be tried again.

        Several runs are tried again in halves; one run comes back with Died if it raised, or after several
        workers died with it.
        """
        chunk, failures = pending
        if isinstance(result, Died) and len(chunk) > 1:
            self._again.extendleft(map(Pending, reversed(chunk.split())))
        elif isinstance(result, Died) and not result.traceback and failures + 1 < self._max_attempts_alone:
            self._again.appendleft(Pending(chunk, failures + 1))
        else:
            yield chunk, result
