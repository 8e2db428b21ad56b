"""Mean, unbiased variance and range of a set of numbers."""

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
