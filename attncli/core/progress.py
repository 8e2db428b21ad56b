"""What long work tells while it runs."""

from collections.abc import Callable
from typing import NamedTuple


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
