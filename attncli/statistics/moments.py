"""Mean, unbiased variance and range: of all numbers at once, of groups, or of numbers that come in parts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def moments(numbers: Float[Tensor, "..."]) -> dict[str, float]:
    """Mean, unbiased variance, minimum and maximum of all entries; the variance of one number is NaN."""
    flat = numbers.double().flatten()
    variance = flat.var().item() if len(flat) > 1 else float("nan")
    return {
        "mean": flat.mean().item(),
        "variance": variance,
        "min": flat.min().item(),
        "max": flat.max().item(),
    }


def merged_moments(
    count: Int[Tensor, "*batch group"],
    mean: Float[Tensor, "*batch group"],
    squares: Float[Tensor, "*batch group"],
    lowest: Float[Tensor, "*batch group"],
    highest: Float[Tensor, "*batch group"],
) -> dict[str, Float[Tensor, "*batch"]]:
    """The moments of all groups together, in float64: squared deviations within and between add up.

    `squares` are the sums of squared deviations from each group's mean. NaN where all groups are empty, the
    variance below two numbers. Chan, Golub and LeVeque 1979.
    """
    number, center = count.double(), mean.double().nan_to_num()
    total = number.sum(dim=-1)
    overall = (number * center).sum(dim=-1) / total
    between = number * (center - overall.unsqueeze(-1)).square()
    variance = (squares.double().nan_to_num() + between.nan_to_num()).sum(dim=-1) / (total - 1)
    seen = number > 0
    return {
        "mean": overall,
        "variance": variance.masked_fill(total < 2, torch.nan),
        "min": lowest.double().where(seen, torch.inf).amin(dim=-1).masked_fill(total == 0, torch.nan),
        "max": highest.double().where(seen, -torch.inf).amax(dim=-1).masked_fill(total == 0, torch.nan),
    }


@dataclass(frozen=True)
class RunningMoments:
    """The count of numbers so far in each place, their mean, and the sum of squared deviations from it."""

    count: Int[Tensor, "*place"]
    mean: Float[Tensor, "*place"]
    squares: Float[Tensor, "*place"]

    @classmethod
    def of(cls, numbers: Float[Tensor, "text ..."]) -> "RunningMoments":
        """The moments of some numbers; NaN does not count, and the mean of none is 0."""
        numbers = numbers.double()
        count = (~numbers.isnan()).sum(dim=0)
        mean = numbers.nansum(dim=0) / count.clamp(min=1)
        return cls(count, mean, (numbers - mean).square().nansum(dim=0))

    def __add__(self, other: "RunningMoments") -> "RunningMoments":
        """The moments of both together. Chan, Golub and LeVeque 1979, eq. 2.1."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1)
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart.square() * self.count * share
        return RunningMoments(count, self.mean + apart * share, squares)
