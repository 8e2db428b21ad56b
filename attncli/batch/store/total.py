"""Count, mean, deviation and extremes of values that come in parts."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from attncli.batch.store.columns import GROUP_SUMMARY


@dataclass
class Total:
    """What is known so far of the values of one statistic and group.

    `squares` is the sum of (x - mean)^2: parts merge as in Chan, Golub and LeVeque (1979), eq. 2.1.
    """

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    min: float = np.inf
    max: float = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Take more values, all of them numbers."""
        if not values.size:
            return
        total = float(values.sum())
        mean = total / values.size
        self.squares += float(((values - mean) ** 2).sum())
        if self.count:
            between = mean - self.sum / self.count
            self.squares += between**2 * self.count * values.size / (self.count + values.size)
        self.count += values.size
        self.sum += total
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))

    def row(self) -> dict[str, Any]:
        """The GROUP_SUMMARY of some values, at least one; std is unbiased, None of one value."""
        std = sqrt(self.squares / (self.count - 1)) if self.count > 1 else None
        numbers = self.count, self.sum / self.count, std, self.min, self.max
        return dict(zip(GROUP_SUMMARY, numbers, strict=True))
