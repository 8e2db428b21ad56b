"""Estimates the time remaining for some work from the time that its finished part took."""

from dataclasses import dataclass
from time import monotonic

from attncli.core.progress import Stage

LEAST_UPDATES, LEAST_SECONDS, LEAST_SHARE = 3, 2.0, 0.02
"""The minimum for a forecast: updates, seconds, and finished work as a share of the remaining work."""
HALF_SECONDS = 10.0
"""The half-life of a measurement; for long work, a quarter of the elapsed time."""
STEADY_SHARE, STEADY_SECONDS, STEADY_RATIO = 0.05, 5.0, 1.2
"""A steady forecast needs this share of the remaining work and must stay within this ratio for this long."""


@dataclass
class _Measured:
    """The finished work of one kind: its updates, its seconds, and its share of the whole.

    `last_seconds` and `last_share` give recent work more weight, because the machine's load changes and later
    parts may be slower.
    """

    updates: int = 0
    seconds: float = 0.0
    share: float = 0.0
    last_seconds: float = 0.0
    last_share: float = 0.0

    def add(self, updates: int, seconds: float, share: float) -> None:
        self.updates += updates
        self.seconds += seconds
        self.share += share
        decay = 0.5 ** (seconds / max(HALF_SECONDS, self.seconds / 4))
        self.last_seconds = self.last_seconds * decay + seconds
        self.last_share = self.last_share * decay + share

    def seconds_left(self, left: float, least: float = LEAST_SHARE) -> float | None:
        """Return the number of seconds that the remaining share takes, or None if too little was measured."""
        is_enough = self.updates >= LEAST_UPDATES and self.seconds >= LEAST_SECONDS
        is_enough = is_enough and self.share > least * left and self.last_share > 0
        return self.last_seconds / self.last_share * left if is_enough else None


class Forecast:
    """A single forecast over all stages of some work.

    The remaining share is assumed to run as fast as the finished part of the current kind of stage, or of the
    kind with the most finished work if the current one has just begun.
    """

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.stage: Stage | None = None
        self.share = 0.0
        self._runs_done = self._layer = 0
        self._at = self._begun = monotonic()
        self._kinds: dict[str, _Measured] = {}
        self._before: tuple[float, float] | None = None

    def begin(self, stage: Stage) -> None:
        """Begin a stage and finish the previous one. If less is done than before, all work starts over."""
        if self.stage is not None and stage.done >= self.stage.done:
            # At most the stage's own share, because the stages that were skipped took no time.
            self._measure(min(stage.done, self.stage.end))
        else:
            self._begin_anew()
        self.stage, self.share = stage, stage.done
        self._runs_done = self._layer = 0

    def begin_layer(self, number: int, count: int) -> None:
        """Begin a layer of the stage's runs. A trial run before those runs ends after its first layers."""
        if self.stage is None or not self.stage.runs:
            return
        self._runs_done += number == 1 and self._layer == count
        self._layer = number
        part = min(1.0, (self._runs_done + (number - 1) / count) / self.stage.runs)
        share = self.stage.done + part * (self.stage.end - self.stage.done)
        self._measure(share)
        self.share = share

    def _measure(self, share: float) -> None:
        assert self.stage is not None
        now = monotonic()
        measured = int(share > self.share), now - self._at, share - self.share
        self._kinds.setdefault(self.stage.what, _Measured()).add(*measured)
        self._at = now

    def seconds_left(self) -> float | None:
        """Return the forecast in seconds, or None if too little is done."""
        if self.stage is None:
            return None
        left = 1 - self.share
        stage_seconds = self._kinds.get(self.stage.what, _Measured()).seconds_left(left)
        most = max(self._kinds.values(), key=lambda kind: kind.share, default=_Measured())
        return most.seconds_left(left, STEADY_SHARE) if stage_seconds is None else stage_seconds

    def steady_seconds(self) -> tuple[float, float] | None:
        """Return the seconds for the whole work and for the remaining work, or None before it is steady."""
        if self.stage is None:
            return None
        left = self._kinds.get(self.stage.what, _Measured()).seconds_left(1 - self.share, STEADY_SHARE)
        if left is None:
            self._before = None
            return None
        now = monotonic()
        whole = now - self._begun + left
        if self._before is None or not 1 / STEADY_RATIO < whole / self._before[1] < STEADY_RATIO:
            self._before = now, whole
        return (whole, left) if now - self._before[0] >= STEADY_SECONDS else None
