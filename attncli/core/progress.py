"""Progress reports of long computations."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable


class Stage(NamedTuple):
    """The start of one part of the work; `done` and `end` are the shares of work done before and after.

    `what` describes the part; similar parts share a description, and `number` of `total` counts them. `runs`
    is the number of model runs if the stage does nothing else, so that the layers of these runs show its
    progress. Shares are roughly proportional to the costs of the parts, and never decrease.
    """

    what: str
    done: float
    end: float
    number: int = 0
    total: int = 0
    runs: int = 0

    @property
    def words(self) -> str:
        """The description of the stage, such as `reading` or `head 12 of 90`."""
        return f"{self.what} {self.number:,} of {self.total:,}" if self.total else self.what


@runtime_checkable
class Progress(Protocol):
    """A listener for the progress of an experiment."""

    def __call__(self, share: float, /) -> None:
        """Report the finished share of a long computation, between 0 and 1."""

    def stage(self, stage: Stage, /) -> None:
        """Report the start of one part of a long computation."""

    def if_long(self, ways_out: str, /) -> None:
        """Offer cheaper settings, shown only if the whole computation takes long."""

    def write(self, text: str, /) -> None:
        """Show text as a model generates it."""

    def begin(self, text: str, /) -> None:
        """Show a line until anything else is shown, because the next step is long and reports no progress."""

    def tell(self, line: str, /) -> None:
        """Show a permanent line when a part is finished."""

    def begin_layer(self, number: int, count: int, /) -> None:
        """Report the start of one of `count` layers of a model that reads its layers while it runs."""


class Work:
    """Reports the stages of some work as they begin, given the approximate cost of each stage in any unit.

    `left` is an estimate of the cost of all stages that have not begun; `expect` replaces this estimate once
    more is known.
    """

    def __init__(self, tell: Callable[[Stage], None] | None = None, left: float = 0.0) -> None:
        self._tell, self._left = tell, left
        self._done = self._running = self._share = 0.0

    def begin(self, what: str, cost: float, number: int = 0, total: int = 0, *, runs: int = 0) -> None:
        """Begin a stage of the given cost; the previous stage is done."""
        self._done += self._running
        self._running, self._left = cost, max(0.0, self._left - cost)
        whole = max(self._done + cost + self._left, TINY)
        self._share = max(self._share, min(self._done / whole, ALMOST_DONE))
        if self._tell is not None:
            end = max(self._share, (self._done + cost) / whole)
            self._tell(Stage(what, self._share, end, number, total, runs))

    def expect(self, left: float) -> None:
        """Set the total cost of all stages after the current one."""
        self._left = left


TINY = 1e-9
ALMOST_DONE = 0.999
"""The largest share reported before the work is done, even if the estimates of the costs are too low."""
