"""Reports on long work while it runs."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable


class Stage(NamedTuple):
    """A part of some work that begins: `done` is the share of all work before it, `end` that after it.

    `what` says what it does; stages that are alike say the same, and `number` of `total` which one it is.
    `runs` of a model are all it does, where that is known: their layers say how far it is. Shares are in
    proportion to about what the parts cost, and never fall.
    """

    what: str
    done: float
    end: float
    number: int = 0
    total: int = 0
    runs: int = 0

    @property
    def words(self) -> str:
        """`reading`, `head 12 of 90`."""
        return f"{self.what} {self.number:,} of {self.total:,}" if self.total else self.what


@runtime_checkable
class Progress(Protocol):
    """A listener to the progress of an experiment."""

    def __call__(self, share: float, /) -> None:
        """The share of a long computation that is done, between 0 and 1."""

    def stage(self, stage: Stage, /) -> None:
        """A part of a long computation begins."""

    def if_long(self, ways_out: str, /) -> None:
        """What would take less, to be said where all takes long."""

    def write(self, text: str, /) -> None:
        """Text as a model generates it."""

    def begin(self, text: str, /) -> None:
        """A line until anything else is shown: what follows takes long and says nothing."""

    def tell(self, line: str, /) -> None:
        """A line that stays: a part is finished."""

    def of_layers(self, number: int, count: int, /) -> None:
        """A layer of a model that is read as it is used begins, and how many there are."""


class Work:
    """Tells the stages of some work as they begin, from about what each costs, in any unit.

    `left` is what all that has not begun costs: an estimate, which `expect` replaces once more is known.
    """

    def __init__(self, tell: Callable[[Stage], None] | None = None, left: float = 0.0) -> None:
        self._tell, self._left = tell, left
        self._done = self._running = self._share = 0.0

    def begin(self, what: str, cost: float, number: int = 0, total: int = 0, *, runs: int = 0) -> None:
        """A stage of that cost begins, and the one before is done."""
        self._done += self._running
        self._running, self._left = cost, max(0.0, self._left - cost)
        whole = max(self._done + cost + self._left, TINY)
        self._share = max(self._share, min(self._done / whole, ALMOST_DONE))
        if self._tell is not None:
            end = max(self._share, (self._done + cost) / whole)
            self._tell(Stage(what, self._share, end, number, total, runs))

    def expect(self, left: float) -> None:
        """What follows the stage that runs now costs so much."""
        self._left = left


TINY = 1e-9
ALMOST_DONE = 0.999
"""The largest share reported before the work is done: an estimate may be off."""
