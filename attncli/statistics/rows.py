"""Rows of attention weights, and the statistics of each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Softmax:
    """How rows came of their scores: weight p = exp(exponent - log_total), the largest exponent of a row 0.

    `sums` is the sum of the weights of a row. Either the exponents are there, or the sums that the compiled
    pass computed from them: `cross` = sum p exponent, `distance` = sum p |i - j|. `participation`, 1 / sum
    p^2 in float64, is there from that pass, and with a sink, below which p may be too small to be squared.
    """

    log_totals: Float[Tensor, "*batch query"]
    sums: Float[Tensor, "*batch query"]
    exponents: Float[Tensor, "*batch query key"] | None = None
    cross: Float[Tensor, "*batch query"] | None = None
    participation: Float[Tensor, "*batch query"] | None = None
    distance: Float[Tensor, "*batch query"] | None = None


@dataclass(frozen=True)
class Rows:
    """Weights p of some queries on a run of neighbouring keys; keys before and after it have weight 0.

    `queries` and `keys` are positions, `visible` is how many keys each query may see. `softmax` is there
    where the weights came from scores; weights from elsewhere may be negative.
    """

    weights: Float[Tensor, "*batch query key"]
    visible: Int[Tensor, "*#batch query"]
    queries: Int[Tensor, " query"]
    keys: Int[Tensor, " key"]
    softmax: Softmax | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    """What depends only on positions: rows at the same positions in other layers share it."""

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

    def on_key(self, position: int) -> Float[Tensor, "*batch query"]:
        """The weight on one key."""
        place = position - self._shared("first_key", lambda: int(self.keys[0]))
        if not 0 <= place < len(self.keys):
            return torch.zeros_like(self.weights[..., 0])
        return self.weights[..., place]

    def distances(self) -> Float[Tensor, "query key"]:
        """|i - j|, in tokens."""
        found: Tensor = self._shared(
            "distances", lambda: (self.queries.unsqueeze(-1) - self.keys).abs().to(self.weights.dtype)
        )
        return found

    def max_entropy(self) -> Float[Tensor, "*#batch query"]:
        """ln(number of visible keys), the entropy of a uniform row; NaN below two of them."""
        found: Tensor = self._shared(
            "max_entropy",
            lambda: self.visible.to(self.weights.dtype).log().masked_fill(self.visible < 2, torch.nan),
        )
        return found

    def _shared(self, name: str, compute: Callable[[], Any]) -> Any:
        if name not in self.shared:
            self.shared[name] = compute()
        return self.shared[name]


def entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """-sum p ln p, in nats, with 0 ln 0 = 0. Shannon 1948; of attention: Clark et al. 2019 (1906.04341)."""
    return rows.entropy


def normalized_entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """Entropy over ln(number of visible keys): 1 where a row is uniform; NaN where one key is visible."""
    return rows.entropy / rows.max_entropy()


def max_weight(rows: Rows) -> Float[Tensor, "*batch query"]:
    """max p: the largest weight of a row."""
    if rows.softmax is None:
        return rows.weights.amax(dim=-1)
    return (-rows.softmax.log_totals).exp()


def sink_mass(rows: Rows) -> Float[Tensor, "*batch query"]:
    """The weight on the first key. Xiao et al. 2023 (2309.17453): attention sinks."""
    return rows.on_key(0)


def distance(rows: Rows) -> Float[Tensor, "*batch query"]:
    """sum p |i - j|, in tokens: mean distance from query i to the keys. Vig & Belinkov 2019 (1906.04284)."""
    if rows.softmax is not None and rows.softmax.distance is not None:
        return rows.softmax.distance
    return (rows.weights * rows.distances()).sum(dim=-1)


def participation(rows: Rows) -> Float[Tensor, "*batch query"]:
    """1 / sum p^2: how many keys share the weight, were it spread evenly (inverse participation ratio).

    In float64, whatever the weights are in: a sink that leaves p = 1e-20 to the keys makes it 1e40.
    """
    if rows.softmax is not None and rows.softmax.participation is not None:
        return rows.softmax.participation
    length: Tensor = torch.linalg.vector_norm(rows.weights, dim=-1, dtype=torch.float64)
    return length.square().reciprocal()


def softmax_gradient_norm(weights: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Frobenius norm of the softmax Jacobian diag(p) - p p^T: sqrt(S2 - 2 S3 + S2^2) with Sn = sum p^n.

    It vanishes as the row saturates to one-hot: the reason for scaling in Vaswani et al. 2017, section 3.2.1.
    Computed as the sum over the Jacobian's entries, which loses no digits there.
    """
    diagonal = weights * (1 - weights)
    off_diagonal = weights.unsqueeze(-1) * weights.unsqueeze(-2)
    off_diagonal = off_diagonal - off_diagonal.diagonal(dim1=-2, dim2=-1).diag_embed()
    return (diagonal.square().sum(dim=-1) + off_diagonal.square().sum(dim=(-2, -1))).sqrt()
