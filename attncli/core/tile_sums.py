"""The scores of one head, a tile at a time, and running sums computed by the compiled library or by torch."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.names import Ends, cache_ends
from attncli.core.row_tiles import LOG2_E, Scratch
from attncli.core.runtime import tile_pass

ALIGNMENT = 16
"""Tiles begin at multiples of this number, because matrix products of odd sizes are slower."""


@dataclass(frozen=True)
class Interval:
    """The unmasked keys first <= rank < stop for each query of a block; ranks count only unmasked keys."""

    first: Int[Tensor, " query"]
    stop: Int[Tensor, " query"]

    def hides(self, ranks: Int[Tensor, "*query key"]) -> Bool[Tensor, "query key"]:
        """True where a query does not see a key."""
        return (ranks < self.first[:, None]) | (ranks >= self.stop[:, None])

    def tiles(self, width: int) -> Iterator[tuple[slice, bool]]:
        """Cover all intervals with slices of at most `width` keys.

        Each slice comes with True if every query sees all its keys. Keys that no query of the block sees are
        left out, which halves the work of causal attention and makes a sliding window linear in the length.
        Only slices at the ragged edges need a mask.
        """
        # Neither end decreases from query to query.
        start, stop = int(self.first[0]), int(self.stop[-1])
        inner = (
            -(-int(self.first[-1]) // ALIGNMENT) * ALIGNMENT,
            int(self.stop[0]) // ALIGNMENT * ALIGNMENT,
        )
        cuts = [start, *inner, stop] if inner[0] < inner[1] else [start, stop]
        for left, right in pairwise(cuts):
            for key in range(left, right, width):
                yield slice(key, min(key + width, right)), (left, right) == inner


@dataclass(frozen=True)
class HeadMask:
    """The masks of one head. Query i stands at position i or, if causal, at i + num_keys - num_queries.

    `unmasked` lists the keys that the padding mask leaves, in order. A query at position t sees key j if j <=
    t (with causal) and |t - j| < window.
    """

    unmasked: Int[Tensor, " kept"]
    num_keys: int
    num_queries: int
    causal: bool
    window: int | None

    def positions(self, rows: slice) -> Int[Tensor, " query"]:
        """Positions of the queries among the keys; negative if causal and keys are fewer than queries."""
        shift = self.num_keys - self.num_queries if self.causal else 0
        return torch.arange(rows.start + shift, rows.stop + shift, device=self.unmasked.device)

    def interval(self, rows: slice) -> Interval:
        """The interval of unmasked keys that each of these queries sees."""
        position = self.positions(rows)
        first, stop = torch.zeros_like(position), torch.full_like(position, len(self.unmasked))
        if self.window is not None:
            first = torch.searchsorted(self.unmasked, position - self.window, right=True)
            stop = torch.searchsorted(self.unmasked, position + self.window)
        if self.causal:
            stop = torch.searchsorted(self.unmasked, position, right=True)
        return Interval(first, stop)


GROUPS_PER_KEY = 64
"""torch.topk finds k of n in one sweep from n = 64 k on; for smaller n it partitions, which takes longer."""


def keep_top(
    top_scores: Float[Tensor, "query top_k"],
    top_ranks: Int[Tensor, "query top_k"],
    scores: Float[Tensor, "query key"],
    first_rank: int,
    room: Float[Tensor, " size"],
) -> Float[Tensor, " query"]:
    """Merge the exact top k of a tile into the top k so far, and return the row maxima.

    The k largest scores lie in the k groups of keys with the largest maxima, since any other score has k
    group maxima at or above it. Maxima cost a fraction of `topk`, which then sees few scores. A tile is
    searched only in rows where it beats the k-th score so far, which about k ln n of n tiles do. `room` has
    space for a tile.
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
    """Take a matrix from the front of a buffer; return it with the remaining buffer."""
    return room[: rows * columns].view(rows, columns), room[rows * columns :]


ROWS_AT_ONCE = 1024
"""The number of rows that are in float64 at a time."""
LOWEST = -1e30
"""The score of a hidden entry, finite so that weight * score is 0, not NaN; real scores exceed -1e15."""


@dataclass(frozen=True)
class QueryBlock:
    """Some rows of a head and their positions.

    `centre` is the score of each row with the mean key, in bits.
    """

    rows: slice
    query: Float[Tensor, "query dim"]
    position: Int[Tensor, " query"]
    here: Float[Tensor, " query"]
    interval: Interval
    centre: Float[Tensor, " query"]

    def of(self, rows: slice) -> "QueryBlock":
        """Select some of these rows, counted from the first, in the same memory."""
        if rows == slice(0, len(self.query)):
            return self
        interval = Interval(self.interval.first[rows], self.interval.stop[rows])
        block_rows = slice(self.rows.start + rows.start, self.rows.start + rows.stop)
        return QueryBlock(
            block_rows, self.query[rows], self.position[rows], self.here[rows], interval, self.centre[rows]
        )


@dataclass(frozen=True)
class ScaledHead:
    """Query, key and value of one head, and centred scores in bits: (score - centre) * log2(e).

    Softmax does not change if all scores of a row are shifted, or if its base changes with them. This helps
    twice: log2(e) is folded into the query, because exp2 is cheaper than exp; and the score of the mean key
    is subtracted, by subtracting the mean key, because sums of squares of small numbers keep their digits.
    """

    query: Float[Tensor, "query dim"]
    key: Float[Tensor, "key dim"]
    value: Float[Tensor, "key value_dim"]
    visibility: HeadMask
    mean_key: Float[Tensor, " dim"]
    scale: float
    softcap: float | None
    sink: Float[Tensor, ""]
    bound: float
    """The bound on |centred score|, in bits (Cauchy-Schwarz: |query| |key|)."""
    centred: Float[Tensor, "kept dim"] | None = None
    """The unmasked keys minus the mean key (unchanged with a softcap), if several query blocks use them."""

    def with_centred_keys(self) -> "ScaledHead":
        """Return this head with `centred`, computed once for all blocks."""
        key = self.take(self.key, slice(0, len(self.visibility.unmasked)))
        return replace(self, centred=key - self.mean_key if self.softcap is None else key)

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
        """Compute the block's centred scores with these keys in `buffer`, which also has room for keys."""
        key = self.take(self.key, ranks) if self.centred is None else self.centred[ranks]
        shape = (block.query.shape[0], key.shape[0])
        num_scores = shape[0] * shape[1]
        scores = buffer[:num_scores].view(shape)
        if self.softcap is None:
            if self.centred is None:
                room = buffer[num_scores : num_scores + key.numel()].view(key.shape)
                key = torch.sub(key, self.mean_key, out=room)
            return torch.mm(block.query, key.T, out=scores)
        torch.mm(block.query, key.T, out=scores).tanh_().mul_(self.softcap * LOG2_E)
        return scores.sub_(block.centre[:, None])

    def take(self, rows: Float[Tensor, "key dim"], ranks: slice) -> Float[Tensor, "kept dim"]:
        """Take the rows of key or value for these unmasked keys, in the dtype of the computation."""
        unmasked = self.visibility.unmasked
        taken = rows[ranks if unmasked.shape[0] == self.visibility.num_keys else unmasked[ranks]]
        return taken if taken.dtype == self.mean_key.dtype else taken.to(self.mean_key.dtype)


SAFE_BITS = 48.0
"""Below this bound, 2**(2 * score) summed over 2**27 keys fits in float32 without a reference."""
HEADROOM_BITS = 16.0
"""The number of bits by which scores may exceed the reference before the sums are rescaled."""


@dataclass(frozen=True)
class ScoreTile:
    """Centred scores, in bits, of a block's queries with some unmasked keys; `buffer` has the same size."""

    block: QueryBlock
    scores: Float[Tensor, "query key"]
    keys: slice
    seen_by_all: bool
    value: Float[Tensor, "key value_dim"]
    position: Float[Tensor, " key"]
    buffer: Float[Tensor, " size"]
    ends: Ends
    """The numbers of first and near keys that a small cache would keep."""


@dataclass(frozen=True)
class RowSums:
    """Sums of e = 2**(s - reference) over the keys so far, where s are centred scores in bits.

    Online softmax (Milakov and Gimelshein, arXiv:1805.02867) keeps the reference at the running maximum and
    rescales the sums when it grows. Here the reference stays 0 if no score can be large, and otherwise
    follows the maximum lazily. Either way the results follow from the sums:

        logsumexp  log2(sum e) + reference
        entropy    log2(sum e) - sum e (s - reference) / sum e      (bits)
        sum p^2    sum e^2 / (sum e)^2
        output     sum e value / sum e; distance likewise, with |position - j| as the value
        local      sum e over the first keys and those near the query, over sum e

    `first_key` and `previous` are the scores with the key at position 0 and with the key before the query.
    Sums within a tile have the dtype of the scores; sums across tiles are in float64.
    """

    bounded: bool
    reference: Float[Tensor, " query"]
    largest: Float[Tensor, " query"]
    smallest: Float[Tensor, " query"]
    score: Float[Tensor, " query"]
    score_square: Float[Tensor, " query"]
    total: Float[Tensor, " query"]
    total_square: Float[Tensor, " query"]
    weighted: Float[Tensor, " query"]
    distance: Float[Tensor, " query"]
    local: Float[Tensor, " query"]
    first_key: Float[Tensor, " query"]
    previous: Float[Tensor, " query"]
    output: Float[Tensor, "query value_dim"]
    top_scores: Float[Tensor, "query top_k"]
    top_ranks: Int[Tensor, "query top_k"]

    def of(self, rows: slice) -> "RowSums":
        """Select the sums of some queries, in the same memory."""
        if rows == slice(0, len(self.total)):
            return self
        bounded, *tensors = vars(self).values()
        return RowSums(bounded, *(tensor[rows] for tensor in tensors))


def no_sums(output: Float[Tensor, "query value_dim"], top_k: int, *, bounded: bool) -> RowSums:
    """Create the sums before any key; `output`, all zeros, accumulates its sums in place."""
    like, num_queries = output, len(output)
    smallest, largest, first_key, previous = like.new_full((4, num_queries), LOWEST)
    score, square, total, total_square, weighted, distance, local = torch.zeros(
        7, num_queries, dtype=torch.float64, device=like.device
    )
    return RowSums(
        bounded=bounded,
        reference=like.new_full((num_queries,), 0.0 if bounded else LOWEST / 10),
        largest=largest,
        smallest=smallest.neg_(),
        score=score,
        score_square=square,
        total=total,
        total_square=total_square,
        weighted=weighted,
        distance=distance,
        local=local,
        first_key=first_key,
        previous=previous,
        output=output,
        top_scores=like.new_full((num_queries, top_k), LOWEST),
        top_ranks=torch.full((num_queries, top_k), -1, device=like.device),
    )


def adder_by_torch(_block: QueryBlock, sums: RowSums, _ends: Ends) -> Callable[[ScoreTile], None]:
    """Return a function that adds a tile to a block's sums: score moments and extremes, then the weights.

    It destroys the scores.
    """

    def add_tile(tile: ScoreTile) -> None:
        _add_scores(sums, tile)
        _add_weights(sums, tile)

    return add_tile


def add_columns_by_torch(
    tile: ScoreTile,
    rows: slice,
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    mass: Float[Tensor, " key"],
    largest: Float[Tensor, " key"],
) -> None:
    """Add the weights 2^(score - reference) * inverse of some rows to the columns' sums and maxima.

    Destroys the scores of these rows.
    """
    weights = tile.scores[rows].sub_(reference[:, None]).exp2_().mul_(inverse[:, None])
    hidden = _hidden(tile)
    if hidden is not None:
        weights.masked_fill_(hidden[rows], 0.0)
    mass += weights.sum(0)
    torch.maximum(largest, weights.amax(0), out=largest)


def _hidden(tile: ScoreTile) -> Bool[Tensor, "query key"] | None:
    if tile.seen_by_all:
        return None
    ranks = torch.arange(tile.keys.start, tile.keys.stop, device=tile.scores.device)
    return tile.block.interval.hides(ranks)


def _add_scores(sums: RowSums, tile: ScoreTile) -> None:
    """Add the moments of the scores. Sets hidden scores to LOWEST, in place."""
    scores, hidden = tile.scores, _hidden(tile)
    if hidden is not None:
        scores.masked_fill_(hidden, 0.0)
    sums.score.add_(scores.sum(-1))
    sums.score_square.add_(torch.linalg.vector_norm(scores, dim=-1).square_())
    if hidden is not None:
        scores.masked_fill_(hidden, -LOWEST)
    torch.minimum(sums.smallest, scores.amin(-1), out=sums.smallest)
    if hidden is not None:
        scores.masked_fill_(hidden, LOWEST)
    _note_keys(sums, tile)
    highest = keep_top(sums.top_scores, sums.top_ranks, scores, tile.keys.start, tile.buffer)
    torch.maximum(sums.largest, highest, out=sums.largest)


def _note_keys(sums: RowSums, tile: ScoreTile) -> None:
    """Record the scores with the first and the previous key if the tile has them; hidden ones are LOWEST."""
    place, before = tile.position, tile.block.here - 1
    if place[0] == 0:
        sums.first_key.copy_(tile.scores[:, 0])
    column = torch.searchsorted(place, before).clamp(max=len(place) - 1)
    column_scores = tile.scores.gather(-1, column[:, None])[:, 0]
    sums.previous.copy_(torch.where(place[column] == before, column_scores, sums.previous))


def _add_weights(sums: RowSums, tile: ScoreTile) -> None:
    scores = tile.scores
    if not sums.bounded:
        _raise_reference(sums)
        scores.sub_(sums.reference[:, None])
    weights = torch.exp2(scores, out=tile.buffer[: scores.numel()].view_as(scores))
    sums.output.addmm_(weights, tile.value)
    total = weights.sum(-1)
    sums.total.add_(total)
    sums.weighted.add_(scores.mul_(weights).sum(-1))
    sums.total_square.add_(torch.linalg.vector_norm(weights, dim=-1).square_())
    sums.local.add_(_local(tile, weights))
    sums.distance.add_(_distance(tile, weights, total))


def _raise_reference(sums: RowSums) -> None:
    if not (sums.largest > sums.reference + HEADROOM_BITS).any():
        return
    reference = torch.maximum(sums.reference, sums.largest)
    step = (sums.reference - reference).double()
    factor = torch.exp2(step)
    sums.weighted.addcmul_(step, sums.total)
    for row_sum in (sums.total, sums.weighted, sums.distance, sums.local):
        row_sum *= factor
    sums.total_square.mul_(factor).mul_(factor)
    sums.output.mul_(factor[:, None].to(sums.output.dtype))
    sums.reference.copy_(reference)


def _local(tile: ScoreTile, weights: Float[Tensor, "query key"]) -> Float[Tensor, " query"] | float:
    """sum_j e_j over the first keys and the keys near the query; see `attncli.core.formulas.local_mass`."""
    here, place, ends = tile.block.here, tile.position, tile.ends
    has_first = bool(place[0] < ends.sink)
    if not has_first and (place[-1] <= here[0] - ends.window or place[0] >= here[-1] + ends.window):
        return 0.0
    is_local = (here[:, None] - place).abs_() < ends.window
    if has_first:
        is_local |= place < ends.sink
    return weights.where(is_local, 0.0).sum(-1)


def _distance(
    tile: ScoreTile, weights: Float[Tensor, "query key"], total: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """sum_j e_j |i - j|.

    For keys on one side of the block this is a product with one column: the distance from key to block, plus
    the distance within the block times the sum of the weights. Neither term is negative, so no digits cancel
    as they would in i sum e - sum e j. Destroys the scores.
    """
    here, place = tile.block.here, tile.position
    if here[0] >= place[-1]:
        return (weights @ (here[0] - place)).addcmul_(total, here - here[0])
    if here[-1] <= place[0]:
        return (weights @ (place - here[-1])).addcmul_(total, here[-1] - here)
    across = torch.sub(here[:, None], place, out=tile.scores)
    return across.abs_().mul_(weights).sum(-1)


TILE_FIELDS = ("scores", "first", "stop", "position", "here")
SUM_FIELDS = (
    "reference",
    "smallest",
    "largest",
    "score",
    "score_square",
    "total",
    "total_square",
    "weighted",
    "distance",
    "local",
    "first_key",
    "previous",
    "top_scores",
    "top_ranks",
    "output",
)


class TileArguments(ctypes.Structure):
    """The struct `Tile` in tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_queries", "num_keys", "value_dim", "top_k", "first_rank")),
        *((name, ctypes.c_int64) for name in ("bounded", "num_first", "window")),
        ("headroom", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (*TILE_FIELDS, *SUM_FIELDS)),
    )


def suits(like: Tensor) -> bool:
    """True if the library exists and supports tensors of this dtype and device."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and tile_pass() is not None


def adder_compiled(block: QueryBlock, sums: RowSums, ends: Ends) -> Callable[[ScoreTile], None]:
    """Like `adder_by_torch`, but pointers to the numbers are computed only once for the whole block."""
    interval = block.interval
    block_tensors = {"first": interval.first, "stop": interval.stop, "here": block.here}
    tensors = block_tensors | {name: getattr(sums, name) for name in SUM_FIELDS}
    arguments = TileArguments(
        num_queries=len(block.query),
        value_dim=sums.output.shape[1],
        top_k=sums.top_scores.shape[1],
        bounded=sums.bounded,
        num_first=ends.sink,
        window=ends.window,
        headroom=HEADROOM_BITS,
        **{name: tensor.data_ptr() for name, tensor in tensors.items()},
    )
    library, output = tile_pass(), sums.output
    assert library is not None
    add, place = library.attn_add_tile, ctypes.byref(arguments)

    def add_tile(tile: ScoreTile) -> None:
        arguments.num_keys, arguments.first_rank = tile.scores.shape[1], tile.keys.start
        arguments.scores, arguments.position = tile.scores.data_ptr(), tile.position.data_ptr()
        add(place)
        output.addmm_(tile.scores, tile.value)

    return add_tile


def add_columns_compiled(
    tile: ScoreTile,
    rows: slice,
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    mass: Float[Tensor, " key"],
    largest: Float[Tensor, " key"],
) -> None:
    """Add the weights 2^(score - reference) * inverse of some rows to the columns' sums and maxima."""
    scores, interval = tile.scores[rows], tile.block.interval
    library = tile_pass()
    assert library is not None
    library.attn_add_columns(
        ctypes.c_void_p(scores.data_ptr()),
        *map(ctypes.c_int64, scores.shape),
        *(ctypes.c_void_p(ranks[rows].data_ptr()) for ranks in (interval.first, interval.stop)),
        ctypes.c_int64(tile.keys.start),
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (reference, inverse, mass, largest)),
    )


class TilePass(NamedTuple):
    """Adds tiles to a block's row sums or to its column sums."""

    adder: Callable[[QueryBlock, RowSums, Ends], Callable[[ScoreTile], None]]
    add_columns: Callable[..., None]


TORCH = TilePass(adder_by_torch, add_columns_by_torch)
COMPILED = TilePass(adder_compiled, add_columns_compiled)


def tile_pass_for(like: Tensor) -> TilePass:
    """Return the pass for tensors of this dtype on this device."""
    return COMPILED if suits(like) else TORCH


SHORT_ROW = 8192
"""The number of keys per row up to which wider tiles were measured to be faster."""


@dataclass(frozen=True)
class TileSizes:
    """The numbers of queries and keys per tile. 512 x 1,024 float32 scores take 2 MB."""

    queries: int = 512
    keys: int = 1024

    @classmethod
    def suited_to(cls, num_keys: int, like: Tensor) -> "TileSizes":
        """Choose wide tiles for short rows, which torch searches singly, or tiles that fit the caches."""
        is_compiled = tile_pass_for(like) is COMPILED
        return cls(keys=2048) if num_keys <= SHORT_ROW and not is_compiled else cls()


def sum_rows(head: ScaledHead, block: QueryBlock, sums: RowSums, sizes: TileSizes, scratch: Scratch) -> None:
    """Compute everything that these queries' row statistics need, in one pass over the keys."""
    add_tile = tile_pass_for(sums.output).adder(block, sums, cache_ends(head.visibility.num_keys))
    for tile in score_tiles(head, block, sizes, scratch):
        add_tile(tile)


def score_tiles(
    head: ScaledHead, block: QueryBlock, sizes: TileSizes, scratch: Scratch
) -> Iterator[ScoreTile]:
    """Yield the block's scores with the keys that it sees, one tile at a time, in the same buffer."""
    unmasked, ends = head.visibility.unmasked, cache_ends(head.visibility.num_keys)
    position = unmasked.to(head.mean_key.dtype)
    size = (len(block.query) + head.key.shape[-1]) * min(sizes.keys, len(unmasked))
    with scratch.lent(size) as (score_buffer, buffer):
        for keys, seen_by_all in block.interval.tiles(sizes.keys):
            scores = head.scores(block, keys, score_buffer)
            value = head.take(head.value, keys)
            yield ScoreTile(block, scores, keys, seen_by_all, value, position[keys], buffer, ends)
