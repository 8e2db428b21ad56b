"""One block of queries against all keys it sees, a tile at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.row_sums import RowSums, ScoreTile
from attncli.attention.engines.tiles.scores import Head, QueryBlock
from attncli.attention.engines.tiles.tile_passes import COMPILED, tile_pass_for

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
