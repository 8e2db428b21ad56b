"""The keys with the largest weights of each row."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

KEYS_PER_RANK = 64
"""Below so many keys per rank torch.topk partitions each row, which takes longer than as many maxima."""
ROUNDINGS = 16
"""By how many spacings of floating point scores may differ that are equal but for rounding."""


def top_keys(
    ranking: Float[Tensor, "*batch query key"], k: int, *, unit: float
) -> Int[Tensor, "*batch query rank"]:
    """The places of the k largest entries of each row, largest first and the earlier first among equals.

    Entries are equal when they may differ by rounding only: by at most ROUNDINGS spacings of floating point
    at the larger of them, or at `unit` where that is larger. -inf marks what has no rank: there, and beyond
    the number of keys, the place is -1.
    """
    num_keys = ranking.shape[-1]
    flat = ranking.reshape(-1, num_keys)
    count = min(k + 1, num_keys)
    if num_keys < KEYS_PER_RANK * k:
        values, places = _by_rounds(flat, count, lambda left, best: best.indices)
    else:
        values, places = flat.topk(count)
    # Of equal entries any may have been taken: the few rows that have some are searched again.
    is_tied = are_equal(values[:, 1:], values[:, :-1], unit) & (values[:, 1:] > -torch.inf)
    if len(tied := is_tied.any(dim=-1).nonzero()[:, 0]):

        def first(left: Tensor, best: Any) -> Tensor:
            place: Tensor = are_equal(left, best.values, unit).byte().argmax(dim=-1, keepdim=True)
            return place

        of_ties, firsts = _by_rounds(flat[tied], count, first)
        values[tied], places[tied] = of_ties, firsts
    kept = places.masked_fill(values == -torch.inf, -1)[:, :k]
    return torch.nn.functional.pad(kept, (0, k - kept.shape[-1]), value=-1).view(*ranking.shape[:-1], k)


def are_equal(smaller: Tensor, larger: Tensor, unit: float) -> Tensor:
    """Where two numbers differ by no more than rounding; `larger` is not below `smaller`."""
    spacing = torch.finfo(larger.dtype).eps * larger.abs().clamp(min=unit)
    return smaller >= larger - ROUNDINGS * spacing


def _by_rounds(
    rows: Float[Tensor, "row key"], count: int, choose: Callable[[Tensor, Any], Tensor]
) -> tuple[Float[Tensor, "row rank"], Int[Tensor, "row rank"]]:
    """The maximum, `count` times; `choose` says where it is."""
    left = rows.clone()
    values, places = left.new_empty(len(rows), count), left.new_empty(len(rows), count, dtype=torch.int64)
    for rank in range(count):
        best = left.max(dim=-1, keepdim=True)
        chosen = choose(left, best)
        values[:, rank : rank + 1], places[:, rank : rank + 1] = best.values, chosen
        left.scatter_(-1, chosen, -torch.inf)
    return values, places
