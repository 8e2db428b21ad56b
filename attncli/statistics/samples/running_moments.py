"""Count, mean and spread of numbers that come some at a time."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class RunningMoments:
    """Of each place how many numbers came, their mean, and the sum of their squared deviations from it."""

    count: Int[Tensor, "*place"]
    mean: Float[Tensor, "*place"]
    squares: Float[Tensor, "*place"]

    @classmethod
    def of(cls, numbers: Float[Tensor, "text ..."]) -> "RunningMoments":
        """Those of some numbers; NaN does not count, and the mean of none is 0."""
        numbers = numbers.double()
        known = ~numbers.isnan()
        count = known.sum(dim=0)
        mean = numbers.nansum(dim=0) / count.clamp(min=1)
        return cls(count, mean, (numbers - mean).square().nansum(dim=0))

    def __add__(self, other: "RunningMoments") -> "RunningMoments":
        """Those of both together. Chan, Golub and LeVeque 1979, eq. 2.1."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart.square() * self.count * share
        return RunningMoments(count, self.mean + apart * share, squares)
