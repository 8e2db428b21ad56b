"""Statistics of rows of signed weights, a few rows at a time, as shares of |w| because w may have any sum."""

from collections.abc import Callable
from dataclasses import dataclass
from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.core.signed_layer import SignedLayer

NEARBY = 8
"""Keys less than this many tokens away count as local."""


@dataclass(frozen=True)
class SignedStatistics:
    """Means for each head of each text, over queries with nonzero weights; NaN if there are none.

    Shares are fractions of the sum of |w| of a row, `row_size`: on the first token, on the previous token
    (for queries that have one), on the query itself, on keys less than 8 tokens away, and on negative
    weights. `distance` is the mean distance weighted by |w|, in tokens. `one_key` is the key with the largest
    mean share, and `one_key_share` is that share. `row_sum` is sum w. `half_life` is the number of tokens in
    which the decay halves the state, ln 2 over the mean of -ln(decay); NaN for a layer without a decay.
    """

    first_share: Float[Tensor, "text head"]
    previous_share: Float[Tensor, "text head"]
    current_share: Float[Tensor, "text head"]
    local_share: Float[Tensor, "text head"]
    distance: Float[Tensor, "text head"]
    one_key_share: Float[Tensor, "text head"]
    one_key: Int[Tensor, "text head"]
    negative_share: Float[Tensor, "text head"]
    row_sum: Float[Tensor, "text head"]
    row_size: Float[Tensor, "text head"]
    half_life: Float[Tensor, "text head"]


ROW_MEANS = (
    *("first_share", "previous_share", "current_share", "local_share", "distance"),
    *("negative_share", "row_sum", "row_size"),
)
"""The statistics that are means over queries."""


def signed_statistics(layer: SignedLayer, between: Callable[[], object] = lambda: None) -> SignedStatistics:
    """Compute the statistics of all heads without the whole matrix; call `between` after each row block."""
    num_texts, num_heads, _, num_keys = layer.shape
    device = layer.log_decay.device if layer.log_decay is not None else None
    sums = SignedSums(num_texts, num_heads, num_keys, device)
    for text in range(num_texts):
        for heads, queries, weights in layer.row_blocks(text):
            sums.add(text, heads, queries.start, weights)
            between()
    decay = layer.log_decay
    return sums.statistics(None if decay is None else decay.double().mean(dim=1))


class SignedSums:
    """Running sums for the statistics of signed rows, to which a few rows are added at a time."""

    def __init__(self, num_texts: int, num_heads: int, num_keys: int, device: torch.device | None) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(num_texts, num_heads, *shape, dtype=torch.float64, device=device)

        self.of_rows = {name: zeros() for name in ROW_MEANS}
        self.counts, self.received = zeros(2), zeros(num_keys)

    def add(self, text: int, heads: slice, first: int, weights: Float[Tensor, "head query key"]) -> None:
        """Add rows of some heads, from query `first` on, with the keys up to the last of these queries."""
        rows = _Rows(weights, first)
        for name, total in self.of_rows.items():
            total[text, heads] += getattr(rows, name)().double().sum(dim=-1)
        self.counts[text, heads] += rows.counts()
        self.received[text, heads, : weights.shape[-1]] += rows.received().double()

    def statistics(self, mean_log_decay: Float[Tensor, "text head"] | None) -> SignedStatistics:
        """The means over the rows so far."""
        means = {
            name: total / self.counts[..., int(name == "previous_share")]
            for name, total in self.of_rows.items()
        }
        share, key = (self.received / self.counts[..., :1]).max(dim=-1)
        half_life = torch.full_like(share, torch.nan) if mean_log_decay is None else -log(2) / mean_log_decay
        return SignedStatistics(**means, one_key_share=share, one_key=key, half_life=half_life)


class _Rows:
    """Some rows of some heads, from the query `first` on, with the keys up to the last of these queries."""

    def __init__(self, weights: Float[Tensor, "head query key"], first: int) -> None:
        self.weights, self.first = weights, first
        self.sizes = weights.abs()
        self.totals = self.sizes.sum(dim=-1)
        self.parts = (1 / self.totals).nan_to_num(posinf=0.0)
        """The factors that turn sizes into shares; 0 for rows without a weight."""

    def counts(self) -> Float[Tensor, "head 2"]:
        """The number of rows with a weight, and how many of these have a previous token."""
        seeing = self.totals > 0
        before = seeing[:, 1:] if self.first == 0 else seeing
        return torch.stack([seeing.sum(dim=-1), before.sum(dim=-1)], dim=-1).double()

    def received(self) -> Float[Tensor, "head key"]:
        """The sum over these rows of the share of each key."""
        return (self.parts.unsqueeze(1) @ self.sizes).squeeze(1)

    def _behind(self, distance: int) -> Float[Tensor, "head query"]:
        """The share of the key `distance` tokens before each query; 0 if there is no such key."""
        shares = torch.zeros_like(self.totals)
        missing = max(0, distance - self.first)
        diagonal = self.sizes.diagonal(offset=self.first - distance, dim1=-2, dim2=-1)
        shares[:, missing:] = diagonal[:, : shares.shape[1] - missing]
        return shares * self.parts

    def first_share(self) -> Float[Tensor, "head query"]:
        return self.sizes[..., 0] * self.parts

    def previous_share(self) -> Float[Tensor, "head query"]:
        return self._behind(1)

    def current_share(self) -> Float[Tensor, "head query"]:
        return self._behind(0)

    def local_share(self) -> Float[Tensor, "head query"]:
        return torch.stack([self._behind(distance) for distance in range(NEARBY)]).sum(dim=0)

    def distance(self) -> Float[Tensor, "head query"]:
        """The mean distance, from positions relative to the first of these queries for float32 precision."""
        num_queries, num_keys = self.sizes.shape[1:]
        places = torch.arange(num_keys, dtype=self.sizes.dtype, device=self.sizes.device) - self.first
        behind = places[self.first :] if self.first else places[:num_queries]
        return behind * (self.totals > 0) - (self.sizes @ places) * self.parts

    def negative_share(self) -> Float[Tensor, "head query"]:
        return (self.totals - self.row_sum()) / 2 * self.parts

    def row_sum(self) -> Float[Tensor, "head query"]:
        return self.weights.sum(dim=-1)

    def row_size(self) -> Float[Tensor, "head query"]:
        return self.totals
