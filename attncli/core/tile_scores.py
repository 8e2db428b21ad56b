"""The scores of one head, a tile at a time, in the form that is cheapest to sum up."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
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


GROUPS_PER_KEY = 64
"""torch.topk finds k of n in one sweep from n = 64 k on; below that it partitions, which takes longer."""


def keep_top(
    top_scores: Float[Tensor, "query top_k"],
    top_ranks: Int[Tensor, "query top_k"],
    scores: Float[Tensor, "query key"],
    first_rank: int,
    room: Float[Tensor, " size"],
) -> Float[Tensor, " query"]:
    """Exact top-k through the maxima of groups of keys, taken into what was found before; gives row maxima.

    The k largest scores lie in the k groups with the largest maxima, since any other score has k group
    maxima at or above it. Maxima cost a fraction of `topk`, which then sees few scores. A tile is
    searched only in rows where it beats the k-th score so far; of n tiles, about k ln n do.

    `room` holds a tile.
    """
    num_queries, top_k = top_scores.shape
    if top_k == 0:
        return scores.amax(-1)
    num_members = 1 << (scores.shape[1] // (GROUPS_PER_KEY * top_k) | 1).bit_length() - 1
    padding = -scores.shape[1] % num_members
    if padding:
        scores = F.pad(scores, (0, padding), value=LOWEST)
    num_groups = scores.shape[1] // num_members  # key = member * num_groups + group
    maxima = scores
    if num_members > 1:
        maxima, room = _taken(room, num_queries, num_groups)
        torch.amax(scores.view(-1, num_members, num_groups), 1, out=maxima)
    row_maxima = maxima.amax(-1)
    rows = (row_maxima > top_scores[:, -1]).nonzero()[:, 0]
    if len(rows) < num_queries:
        maxima = torch.index_select(maxima, 0, rows, out=_taken(room, len(rows), num_groups)[0])
    groups = maxima.topk(min(top_k, num_groups), sorted=False).indices
    members = torch.arange(0, scores.shape[1], num_groups, device=scores.device)
    keys = (groups[..., None] + members).flatten(1)
    candidates = torch.cat([top_scores[rows], scores[rows[:, None], keys]], -1)
    ranks = torch.cat([top_ranks[rows], keys + first_rank], -1)
    best = candidates.topk(top_k)
    top_scores[rows] = best.values
    top_ranks[rows] = ranks.gather(-1, best.indices)
    return row_maxima


def _taken(room: Float[Tensor, " size"], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """A matrix from the front of a buffer, and what is left of it."""
    return room[: rows * columns].view(rows, columns), room[rows * columns :]


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
