"""What becomes of a chunk that failed: split in halves, until the run that is to blame is alone."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from traceback import format_exception
from typing import NamedTuple

from attncli.batch.chunks import Chunk, ChunkResult

MAX_ATTEMPTS_ALONE = 3
"""A worker may die of something else than its run: memory that a neighbour took, a machine switched off."""

Work = Callable[[Chunk], ChunkResult]


@dataclass(frozen=True)
class Died:
    """Why the run of a chunk of one has no result; the traceback, where there is one."""

    reason: str
    traceback: str = ""

    @property
    def raised(self) -> bool:
        """Whether the work raised an error, rather than taking its worker with it."""
        return bool(self.traceback)

    @classmethod
    def of(cls, error: Exception) -> "Died":
        """`ValueError: what was wrong`, and where."""
        told = "; ".join(str(error).splitlines())
        name = type(error).__name__
        return cls(f"{name}: {told}" if told else name, "".join(format_exception(error)))


Result = ChunkResult | Died


def attempted(work: Work, chunk: Chunk) -> Result:
    """What the work gives, or what it raised: one run's mistake is no reason to lose the others."""
    try:
        return work(chunk)
    except Exception as error:
        return Died.of(error)


class Pending(NamedTuple):
    """A chunk to be worked on, and how often it has failed so far."""

    chunk: Chunk
    failures: int = 0


class Queue:
    """The chunks that are not worked on yet: those to try again, then the plan's own, pulled one by one."""

    def __init__(self, chunks: Iterable[Chunk], max_attempts_alone: int = MAX_ATTEMPTS_ALONE) -> None:
        self._chunks = iter(chunks)
        self._max_attempts_alone = max_attempts_alone
        self._again: deque[Pending] = deque()

    def take(self) -> Pending | None:
        """The next chunk, or None where all are taken (one that is worked on may still come back)."""
        if self._again:
            return self._again.popleft()
        chunk = next(self._chunks, None)
        return None if chunk is None else Pending(chunk)

    def put_back(self, pending: Pending) -> None:
        """A chunk that nothing is wrong with, because its worker never came to it."""
        self._again.appendleft(pending)

    def finished(self, pending: Pending, result: Result) -> Iterator[tuple[Chunk, Result]]:
        """The chunk with its result; nothing where it failed and is tried again.

        Of several runs the halves are tried; one run comes back with Died where it raised, or took enough
        workers with it.
        """
        chunk, failures = pending
        if isinstance(result, Died) and len(chunk) > 1:
            self._again.extendleft(map(Pending, reversed(chunk.split())))
        elif isinstance(result, Died) and not result.raised and failures + 1 < self._max_attempts_alone:
            self._again.appendleft(Pending(chunk, failures + 1))
        else:
            yield chunk, result
