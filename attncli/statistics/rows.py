"""Some rows of attention weights, as the formulas of row statistics take them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Softmax:
    """How rows came of their scores: weight p = exp(exponent - log_total), every exponent at most 0.

    `highest` is the row's largest exponent where a sink outside the keys may stand above it; else it is 0.
    `sums` is what the weights of a row add up to. Either the exponents are there, or what the walk over them
    has summed up: `cross` = sum p exponent, `squares` = sum p^2, `distance` = sum p |i - j|.
    """

    log_totals: Float[Tensor, "*batch query"]
    highest: Float[Tensor, "*batch query"] | None
    sums: Float[Tensor, "*batch query"]
    exponents: Float[Tensor, "*batch query key"] | None = None
    cross: Float[Tensor, "*batch query"] | None = None
    squares: Float[Tensor, "*batch query"] | None = None
    distance: Float[Tensor, "*batch query"] | None = None


@dataclass(frozen=True)
class Rows:
    """Weights p of some queries with a run of neighbouring keys; keys before and after it have weight 0.

    `queries` and `keys` are positions, `visible` is how many keys each query may see. `softmax` is there
    where the weights came of scores; weights from elsewhere may be negative.
    """

    weights: Float[Tensor, "*batch query key"]
    visible: Int[Tensor, "*#batch query"]
    queries: Int[Tensor, " query"]
    keys: Int[Tensor, " key"]
    softmax: Softmax | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """What depends on places alone: rows at the same places in other layers have it, too."""

    @cached_property
    def sums(self) -> Float[Tensor, "*batch query"]:
        """sum p: 1, or less where a sink outside the keys takes a share."""
        return self.weights.sum(dim=-1) if self.softmax is None else self.softmax.sums

    @cached_property
    def entropy(self) -> Float[Tensor, "*batch query"]:
        """-sum p ln p. From a softmax log_total sum p - sum p exponent, where nothing cancels."""
        if self.softmax is None:
            terms: Tensor = torch.special.entr(self.weights)
            return terms.sum(dim=-1)
        cross = self.softmax.cross
        if cross is None:
            cross = torch.linalg.vecdot(self.weights, self.softmax.exponents)
        return self.sums * self.softmax.log_totals - cross

    @cached_property
    def squares(self) -> Float[Tensor, "*batch query"]:
        """sum p^2."""
        if self.softmax is not None and self.softmax.squares is not None:
            return self.softmax.squares
        norms: Tensor = torch.linalg.vector_norm(self.weights, dim=-1)
        return norms.square()

    @cached_property
    def mean_distance(self) -> Float[Tensor, "*batch query"]:
        """sum p |i - j|, in tokens."""
        if self.softmax is not None and self.softmax.distance is not None:
            return self.softmax.distance
        return (self.weights * self.distances()).sum(dim=-1)

    def on_key(self, position: int) -> Float[Tensor, "*batch query"]:
        """The weight on one key."""
        if "first_key" not in self.shared:
            self.shared["first_key"] = int(self.keys[0])
        place = position - self.shared["first_key"]
        if not 0 <= place < len(self.keys):
            return torch.zeros_like(self.weights[..., 0])
        return self.weights[..., place]

    def distances(self) -> Float[Tensor, "query key"]:
        """|i - j|, in tokens."""
        if "distances" not in self.shared:
            apart = (self.queries.unsqueeze(-1) - self.keys).abs()
            self.shared["distances"] = apart.to(self.weights.dtype)
        distances: Tensor = self.shared["distances"]
        return distances

    def most_entropy(self) -> Float[Tensor, "*#batch query"]:
        """ln(number of visible keys), the entropy of a uniform row; NaN below two of them."""
        if "most_entropy" not in self.shared:
            logarithms = self.visible.to(self.weights.dtype).log()
            self.shared["most_entropy"] = logarithms.masked_fill(self.visible < 2, torch.nan)
        most: Tensor = self.shared["most_entropy"]
        return most
