"""What becomes of a chunk that failed: split in halves, until the run that is to blame is alone."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from traceback import format_exception
from typing import Generic, Protocol, Self, TypeVar

MAX_ATTEMPTS_ALONE = 3
"""A worker may die of something else than its run: memory that a neighbour took, a machine switched off."""


class Splittable(Protocol):
    """Runs that are worked on together."""

    def __len__(self) -> int: ...

    def split(self) -> list[Self]:
        """Its halves."""
        ...


C = TypeVar("C", bound=Splittable)


@dataclass(frozen=True)
class Died:
    """Why the run of a chunk of one has no result; the traceback, where there is one."""

    reason: str
    traceback: str = ""

    @property
    def raised(self) -> bool:
        """Whether the work raised an error, rather than taking its worker with it."""
        return bool(self.traceback)


def died_of(error: Exception) -> Died:
    """`ValueError: what was wrong`, and where."""
    told = "; ".join(str(error).splitlines())
    name = type(error).__name__
    return Died(f"{name}: {told}" if told else name, "".join(format_exception(error)))


@dataclass
class Pending(Generic[C]):
    """A chunk to be worked on, and how often it has failed so far."""

    chunk: C
    failures: int = 0


@dataclass
class Queue(Generic[C]):
    """The chunks that are not worked on yet: those to try again, then the plan's own, pulled one by one."""

    chunks: Iterator[C]
    max_attempts_alone: int = MAX_ATTEMPTS_ALONE
    again: deque[Pending[C]] = field(default_factory=deque)

    @classmethod
    def of(cls, chunks: Iterable[C], max_attempts_alone: int = MAX_ATTEMPTS_ALONE) -> "Queue[C]":
        """A queue of a plan's chunks."""
        return cls(iter(chunks), max_attempts_alone)

    def take(self) -> Pending[C] | None:
        """The next chunk, or None where all are taken (one that is worked on may still come back)."""
        if self.again:
            return self.again.popleft()
        chunk = next(self.chunks, None)
        return None if chunk is None else Pending(chunk)

    def put_back(self, pending: Pending[C]) -> None:
        """A chunk that nothing is wrong with, because its worker never came to it."""
        self.again.appendleft(pending)

    def failed(self, pending: Pending[C], died: Died) -> Died | None:
        """Its halves are to be tried; Died where it is one run that raised, or has taken enough workers."""
        if len(pending.chunk) > 1:
            self.again.extendleft(Pending(half) for half in reversed(pending.chunk.split()))
            return None
        if died.raised or pending.failures + 1 >= self.max_attempts_alone:
            return died
        self.again.appendleft(Pending(pending.chunk, pending.failures + 1))
        return None
