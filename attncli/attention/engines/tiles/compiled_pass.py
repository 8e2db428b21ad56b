"""A tile taken into the running sums of its rows, by the compiled library: float32, on the CPU."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines.tiles.row_sums import HEADROOM_BITS, RowSums, ScoreTile
from attncli.compiled import tile_pass

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


def add_tile(sums: RowSums, tile: ScoreTile) -> None:
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


def add_columns(
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
