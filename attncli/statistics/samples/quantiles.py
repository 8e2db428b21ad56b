"""What thousands of numbers come to: their quantiles, and where the most extreme of them stand."""

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
    """Where the lowest and the highest `count` numbers stand, the most extreme first; NaN does not count."""
    places = (~numbers.isnan()).nonzero().flatten()
    order = places[numbers[places].sort(stable=True).indices]
    return order[:count], order.flip(0)[:count]
