"""What the order of numbers says: quantiles, the most extreme ones, rank correlation."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

LEVELS = {"min": 0.0, "p05": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}


def quantiles(numbers: Float[Tensor, "..."]) -> dict[str, float]:
    """The quantiles at LEVELS, linear between neighbours (Hyndman & Fan 1996, type 7); NaN does not count."""
    ordered = numbers[~numbers.isnan()].double().sort().values
    if not len(ordered):
        return dict.fromkeys(LEVELS, float("nan"))
    # torch.quantile refuses more than 16 million numbers.
    places = torch.tensor(list(LEVELS.values()), dtype=torch.float64) * (len(ordered) - 1)
    below, above = ordered[places.floor().long()], ordered[places.ceil().long()]
    between = torch.lerp(below, above, (places - places.floor()).to(below.device))
    return dict(zip(LEVELS, between.tolist(), strict=True))


def extreme_places(numbers: Float[Tensor, " n"], count: int) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """Where the lowest and the highest `count` numbers are, the most extreme first; NaN does not count."""
    places = (~numbers.isnan()).nonzero().flatten()
    order = places[numbers[places].sort(stable=True).indices]
    return order[:count], order.flip(0)[:count]


def rank_correlation(a: Float[Tensor, " place"], b: Float[Tensor, " place"]) -> Float[Tensor, ""]:
    """Pearson's correlation of the ranks, equal numbers having the mean of theirs: Spearman 1904.

    NaN where all numbers of one list are equal, as one number alone is.
    """
    if len(a) < 2:
        return torch.tensor(torch.nan, dtype=torch.float64)
    return torch.corrcoef(torch.stack([_ranks(a), _ranks(b)]))[0, 1]


def _ranks(numbers: Float[Tensor, " place"]) -> Float[Tensor, " place"]:
    """How many numbers are below, and half of those that are equal."""
    below = numbers.unsqueeze(1) > numbers
    equal = numbers.unsqueeze(1) == numbers
    return below.sum(dim=1) + (equal.sum(dim=1).double() - 1) / 2
