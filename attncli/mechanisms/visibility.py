"""Which keys a query sees, as a rule rather than a matrix: memory for the entries that are asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

ROWS = 256

Queries = Int[Tensor, "*queries"]
Keys = Int[Tensor, "*keys"]


@dataclass(frozen=True)
class Visibility:
    """Query i, at position t = i + num_keys - num_queries, sees key j where every rule that is set agrees.

    causal: j <= t. window: |t - j| < window. key_mask: True for j (padding is False). rule: any other, a
    function of indices of queries and keys that broadcast.
    """

    num_queries: int
    num_keys: int
    causal: bool = False
    window: int | None = None
    key_mask: Bool[Tensor, " key"] | None = None
    rule: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def sees_all(self) -> bool:
        """Whether every query sees every key."""
        return not self.causal and self.window is None and self.key_mask is None and self.rule is None

    def __call__(self, queries: Queries, keys: Keys) -> Bool[Tensor, "*entries"]:
        """True where the query of that index sees the key of that index; the two broadcast."""
        behind = queries + (self.num_keys - self.num_queries) - keys
        visible = torch.ones_like(behind, dtype=torch.bool)
        if self.causal:
            visible &= behind >= 0
        if self.window is not None:
            visible &= behind.abs() < self.window
        if self.key_mask is not None:
            visible &= self.key_mask[keys]
        if self.rule is not None:
            visible &= self.rule(queries, keys)
        return visible

    def block(self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]) -> Bool[Tensor, "query key"]:
        """The rows of these queries and the columns of these keys."""
        return self(queries.unsqueeze(-1), keys)


def row_blocks(num_queries: int, device: torch.device) -> Iterator[Int[Tensor, " query"]]:
    """All queries, some at a time, so that whole rows of them take memory linear in the length."""
    for start in range(0, num_queries, ROWS):
        yield torch.arange(start, min(start + ROWS, num_queries), device=device)
