"""Running sums over the tiles of a block of queries, taken by the compiled library or by torch."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.row_tiles import Scratch
from attncli.core.runtime import tile_pass
from attncli.core.tile_scores import LOWEST, Head, QueryBlock, keep_top

SAFE_BITS = 48.0
"""Below this bound 2**(2 * score), summed over 2**27 keys, fits float32 without a reference."""
HEADROOM_BITS = 16.0
"""How far scores may outgrow the reference before the sums are rescaled."""


@dataclass(frozen=True)
class ScoreTile:
    """Centred scores, in bits, of a block's queries with some kept keys; `buffer` has room for as many."""

    block: QueryBlock
    scores: Float[Tensor, "query key"]
    keys: slice
    seen_by_all: bool
    value: Float[Tensor, "key value_dim"]
    position: Float[Tensor, " key"]
    buffer: Float[Tensor, " size"]


@dataclass(frozen=True)
class RowSums:
    """Sums of e = 2**(s - reference) over the keys seen so far, s being centred scores in bits.

    Online softmax (Milakov and Gimelshein, arXiv:1805.02867) keeps the reference at the running maximum
    and rescales the sums when it grows. Here the reference stays 0 where no score can be large, and
    otherwise follows the maximum lazily; either way the sums carry everything:

        logsumexp  log2(sum e) + reference
        entropy    log2(sum e) - sum e (s - reference) / sum e      (bits)
        sum p^2    sum e^2 / (sum e)^2
        output     sum e value / sum e; distance likewise, with |position - j| for the value

    Sums over a tile are taken in the type of the scores, sums over tiles in float64.
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
    output: Float[Tensor, "query value_dim"]
    top_scores: Float[Tensor, "query top_k"]
    top_ranks: Int[Tensor, "query top_k"]

    def of(self, rows: slice) -> "RowSums":
        """Those of some queries, in the same memory."""
        tensors = (getattr(self, field.name)[rows] for field in fields(self)[1:])
        return RowSums(self.bounded, *tensors)


def no_sums(output: Float[Tensor, "query value_dim"], top_k: int, *, bounded: bool) -> RowSums:
    """The sums before any key was seen; those of the output, zeros, are summed up in their place."""
    like, num_queries = output, len(output)
    lowest = like.new_full((num_queries,), LOWEST)
    score, square, total, total_square, weighted, distance = torch.zeros(
        6, num_queries, dtype=torch.float64, device=like.device
    )
    return RowSums(
        bounded=bounded,
        reference=like.new_full((num_queries,), 0.0 if bounded else LOWEST / 10),
        largest=lowest,
        smallest=-lowest,
        score=score,
        score_square=square,
        total=total,
        total_square=total_square,
        weighted=weighted,
        distance=distance,
        output=output,
        top_scores=like.new_full((num_queries, top_k), LOWEST),
        top_ranks=torch.full((num_queries, top_k), -1, device=like.device),
    )


def add_tile_by_torch(sums: RowSums, tile: ScoreTile) -> None:
    """Moments and extremes of the scores, then sums over the weights. Destroys the scores."""
    _add_scores(sums, tile)
    _add_weights(sums, tile)


def add_columns_by_torch(
    tile: ScoreTile,
    rows: slice,
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    mass: Float[Tensor, " key"],
    largest: Float[Tensor, " key"],
) -> None:
    """The weights 2^(score - reference) * inverse of some rows, taken into sum and largest of each column.

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
    """Hidden scores become LOWEST, in place."""
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
    highest = keep_top(sums.top_scores, sums.top_ranks, scores, tile.keys.start, tile.buffer)
    torch.maximum(sums.largest, highest, out=sums.largest)


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
    sums.distance.add_(_distance(tile, weights, total))


def _raise_reference(sums: RowSums) -> None:
    if not (sums.largest > sums.reference + HEADROOM_BITS).any():
        return
    reference = torch.maximum(sums.reference, sums.largest)
    step = (sums.reference - reference).double()
    factor = torch.exp2(step)
    sums.weighted.addcmul_(step, sums.total)
    for of_row in (sums.total, sums.weighted, sums.distance):
        of_row *= factor
    sums.total_square.mul_(factor).mul_(factor)
    sums.output.mul_(factor[:, None].to(sums.output.dtype))
    sums.reference.copy_(reference)


def _distance(
    tile: ScoreTile, weights: Float[Tensor, "query key"], total: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """sum_j e_j |i - j|. For keys on one side of the block this is a product with one column:

    the way from key to block, plus the way within the block times the sum of the weights. Neither is
    negative, so no digits cancel as they would in i sum e - sum e j. Destroys the scores.
    """
    here, place = tile.block.here, tile.position
    if here[0] >= place[-1]:
        return (weights @ (here[0] - place)).addcmul_(total, here - here[0])
    if here[-1] <= place[0]:
        return (weights @ (place - here[-1])).addcmul_(total, here[-1] - here)
    across = torch.sub(here[:, None], place, out=tile.scores)
    return across.abs_().mul_(weights).sum(-1)


OF_TILE = ("scores", "first", "stop", "position", "here")
OF_ROWS = (
    "reference",
    "smallest",
    "largest",
    "score",
    "score_square",
    "total",
    "total_square",
    "weighted",
    "distance",
    "top_scores",
    "top_ranks",
    "output",
)


class TileArguments(ctypes.Structure):
    """The struct `Tile` of tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_queries", "num_keys", "value_dim", "top_k", "first_rank")),
        ("bounded", ctypes.c_int64),
        ("headroom", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (*OF_TILE, *OF_ROWS)),
    )


def suits(like: Tensor) -> bool:
    """Whether there is a library, and for such tensors."""
    return like.dtype == torch.float32 and like.device.type == "cpu" and tile_pass() is not None


def add_tile_compiled(sums: RowSums, tile: ScoreTile) -> None:
    """Moments and extremes of the scores, then sums over the weights. Destroys the scores."""
    scores, block = tile.scores, tile.block
    of_tile = (scores, block.interval.first, block.interval.stop, tile.position, block.here)
    of_rows = (getattr(sums, name) for name in OF_ROWS)
    arguments = TileArguments(
        *scores.shape,
        sums.output.shape[1],
        sums.top_scores.shape[1],
        tile.keys.start,
        sums.bounded,
        HEADROOM_BITS,
        *(tensor.data_ptr() for tensor in (*of_tile, *of_rows)),
    )
    library = tile_pass()
    assert library is not None
    library.attn_add_tile(ctypes.byref(arguments))
    sums.output.addmm_(scores, tile.value)


def add_columns_compiled(
    tile: ScoreTile,
    rows: slice,
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    mass: Float[Tensor, " key"],
    largest: Float[Tensor, " key"],
) -> None:
    """The weights 2^(score - reference) * inverse of some rows, taken into sum and largest of each column."""
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
    """Takes a tile into the running sums of its rows; adds its weights to the sums of its columns."""

    add_tile: Callable[..., None]
    add_columns: Callable[..., None]


TORCH = TilePass(add_tile_by_torch, add_columns_by_torch)
COMPILED = TilePass(add_tile_compiled, add_columns_compiled)


def tile_pass_for(like: Tensor) -> TilePass:
    """The pass for tensors of that type, on that device."""
    return COMPILED if suits(like) else TORCH


SHORT_ROW = 8192
"""Keys of a row up to which a wider tile was measured to be faster."""


@dataclass(frozen=True)
class TileSizes:
    """Queries and keys of a tile. 512 x 1,024 float32 scores are 2 MB."""

    queries: int = 512
    keys: int = 1024

    @classmethod
    def suited_to(cls, num_keys: int, like: Tensor) -> "TileSizes":
        """Wide tiles for short rows, where torch searches each for top keys; else what caches hold."""
        is_compiled = tile_pass_for(like) is COMPILED
        return cls(keys=2048) if num_keys <= SHORT_ROW and not is_compiled else cls()


def sum_rows(head: Head, block: QueryBlock, sums: RowSums, sizes: TileSizes, scratch: Scratch) -> None:
    """Fills in everything the row statistics of these queries need, in one pass over the keys."""
    add_tile = tile_pass_for(sums.output).add_tile
    for tile in score_tiles(head, block, sizes, scratch):
        add_tile(sums, tile)


def score_tiles(head: Head, block: QueryBlock, sizes: TileSizes, scratch: Scratch) -> Iterator[ScoreTile]:
    """The scores of the block with the keys that it sees, some at a time, each in the place of the last."""
    kept = head.visibility.kept
    size = (len(block.query) + head.key.shape[-1]) * min(sizes.keys, len(kept))
    with scratch.lent(size) as (score_buffer, buffer):
        for keys, seen_by_all in block.interval.tiles(sizes.keys):
            scores = head.scores(block, keys, score_buffer)
            value, position = head.take(head.value, keys), kept[keys].to(scores.dtype)
            yield ScoreTile(block, scores, keys, seen_by_all, value, position, buffer)
