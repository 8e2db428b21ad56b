"""Which keys each query sees: whatever the masks, one interval of the keys that the padding leaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Int
from torch import Tensor

ALIGNMENT = 16
"""Tiles begin at multiples of this: matrix products of odd sizes are slower."""


@dataclass(frozen=True)
class Interval:
    """For each query of a block, the kept keys first <= rank < stop (ranks count kept keys only)."""

    first: Int[Tensor, " query"]
    stop: Int[Tensor, " query"]

    def hides(self, ranks: Int[Tensor, "*query key"]) -> Bool[Tensor, "query key"]:
        """True where the query does not see the key."""
        return (ranks < self.first[:, None]) | (ranks >= self.stop[:, None])

    def tiles(self, width: int) -> Iterator[tuple[slice, bool]]:
        """Cover all the intervals with slices of at most `width` keys; whether all queries see all of each.

        Keys that no query of the block sees are left out, which makes causal attention half the work
        and a sliding window linear in the length. Only slices at the ragged edges need a mask.
        """
        start, stop = int(self.first.min()), int(self.stop.max())
        inner = (
            -(-int(self.first.max()) // ALIGNMENT) * ALIGNMENT,
            int(self.stop.min()) // ALIGNMENT * ALIGNMENT,
        )
        cuts = [start, *inner, stop] if inner[0] < inner[1] else [start, stop]
        for left, right in pairwise(cuts):
            for key in range(left, right, width):
                yield slice(key, min(key + width, right)), (left, right) == inner


@dataclass(frozen=True)
class KeptKeys:
    """The masks of one head. Query i stands at position i, with causal at i + num_keys - num_queries.

    `kept` lists the keys that the padding mask leaves, in order. A query at position t sees key j when
    j <= t (causal), and when |t - j| < window.
    """

    kept: Int[Tensor, " kept"]
    num_keys: int
    num_queries: int
    causal: bool
    window: int | None

    def positions(self, rows: slice) -> Int[Tensor, " query"]:
        """Where the queries stand among the keys (with causal negative where there are fewer keys)."""
        shift = self.num_keys - self.num_queries if self.causal else 0
        return torch.arange(rows.start + shift, rows.stop + shift, device=self.kept.device)

    def interval(self, rows: slice) -> Interval:
        """The kept keys that each of these queries sees."""
        position = self.positions(rows)
        first, stop = torch.zeros_like(position), torch.full_like(position, len(self.kept))
        if self.window is not None:
            first = torch.searchsorted(self.kept, position - self.window, right=True)
            stop = torch.searchsorted(self.kept, position + self.window)
        if self.causal:
            stop = torch.searchsorted(self.kept, position, right=True)
        return Interval(first, stop)
