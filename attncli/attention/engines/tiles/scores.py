"""The scores of one head, a tile at a time, in the form that is cheapest to sum up."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.intervals import Interval, KeptKeys

LOG2_E = math.log2(math.e)
ROWS_AT_ONCE = 1024
"""Rows that are in float64 at a time."""
LOWEST = -1e30
"""Score of a hidden entry. Finite, so that weight * score is 0 and not NaN; real scores stay above -1e15."""


@dataclass(frozen=True)
class QueryBlock:
    """Some rows of a head, and where they stand. `centre` is their score with the mean key, in bits."""

    rows: slice
    query: Float[Tensor, "query dim"]
    position: Int[Tensor, " query"]
    here: Float[Tensor, " query"]
    interval: Interval
    centre: Float[Tensor, " query"]

    def of(self, rows: slice) -> "QueryBlock":
        """Some of these rows, counted from the first; in the same memory."""
        interval = Interval(self.interval.first[rows], self.interval.stop[rows])
        own = slice(self.rows.start + rows.start, self.rows.start + rows.stop)
        return QueryBlock(
            own, self.query[rows], self.position[rows], self.here[rows], interval, self.centre[rows]
        )


@dataclass(frozen=True)
class Head:
    """Query, key and value of one head, and centred scores in bits: (score - centre) * log2(e).

    Softmax does not change when a row's scores move together, and two moves pay: log2(e), folded into
    the query, because exp2 is cheaper than exp; and subtracting the score of the mean key, by
    subtracting the mean key, because sums of squares of small numbers keep their digits.
    """

    query: Float[Tensor, "query dim"]
    key: Float[Tensor, "key dim"]
    value: Float[Tensor, "key value_dim"]
    visibility: KeptKeys
    mean_key: Float[Tensor, " dim"]
    scale: float
    softcap: float | None
    sink: Float[Tensor, ""]
    bound: float
    """No centred score, in bits, lies further from 0 (Cauchy-Schwarz: |query| |key|)."""

    def block(self, rows: slice) -> QueryBlock:
        factor = self.scale * LOG2_E if self.softcap is None else self.scale / self.softcap
        query = self.query[rows].to(self.mean_key.dtype) * factor
        mean_key = self.mean_key.double()
        centre = torch.cat([part.double() @ mean_key for part in torch.split(query, ROWS_AT_ONCE)])
        if self.softcap is not None:
            centre = self.softcap * LOG2_E * centre.tanh()
        position = self.visibility.positions(rows)
        here, interval = position.to(query.dtype), self.visibility.interval(rows)
        return QueryBlock(rows, query, position, here, interval, centre.to(query.dtype))

    def scores(
        self, block: QueryBlock, ranks: slice, buffer: Float[Tensor, " size"]
    ) -> Float[Tensor, "query key"]:
        """Centred scores of the block with these kept keys, in `buffer`, which has room for the keys, too."""
        key = self.take(self.key, ranks)
        num_scores = len(block.query) * len(key)
        scores = buffer[:num_scores].view(len(block.query), len(key))
        if self.softcap is None:
            centred = buffer[num_scores : num_scores + key.numel()].view(key.shape)
            return torch.mm(block.query, torch.sub(key, self.mean_key, out=centred).T, out=scores)
        torch.mm(block.query, key.T, out=scores).tanh_().mul_(self.softcap * LOG2_E)
        return scores.sub_(block.centre[:, None])

    def score_with(self, block: QueryBlock, position: Int[Tensor, " #query"]) -> Float[Tensor, " query"]:
        """Centred score of each query with the key at its position; LOWEST where it does not see it."""
        kept = self.visibility.kept
        if len(kept) == self.visibility.num_keys:
            hidden = block.interval.hides(position[:, None])[:, 0]
            seen = position.clamp(0, len(kept) - 1)
        else:
            rank = torch.searchsorted(kept, position)
            hidden = block.interval.hides(rank[:, None])[:, 0]
            seen = kept[rank.where(~hidden, 0)]
            hidden |= seen != position
        key = self.key[seen].to(block.query.dtype)
        if self.softcap is None:
            scores = (block.query * (key - self.mean_key)).sum(-1)
        else:
            scores = self.softcap * LOG2_E * (block.query * key).sum(-1).tanh() - block.centre
        return scores.masked_fill(hidden, LOWEST)

    def take(self, rows: Float[Tensor, "key dim"], ranks: slice) -> Float[Tensor, "kept dim"]:
        """These kept keys' rows of key or value, in the type of the computation."""
        kept = self.visibility.kept
        whole = len(kept) == self.visibility.num_keys
        return rows[ranks if whole else kept[ranks]].to(self.mean_key.dtype)
