"""One block of queries against all keys it sees, a tile at a time."""

from dataclasses import dataclass

import torch

from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.row_sums import SAFE_BITS, RowSums
from attncli.attention.engines.tiles.scores import Head

SHORT_ROW = 8192
"""Keys of a row up to which a wider tile was measured to be faster."""


@dataclass(frozen=True)
class TileSizes:
    """Queries and keys of a tile. 512 x 1,024 float32 scores are 2 MB."""

    queries: int = 512
    keys: int = 1024

    @classmethod
    def suited_to(cls, num_keys: int) -> "TileSizes":
        """Wide tiles for short rows, where searching each for top keys costs most; else what caches hold."""
        return cls(keys=2048) if num_keys <= SHORT_ROW else cls()


def sum_rows(head: Head, rows: slice, top_k: int, sizes: TileSizes, scratch: Scratch) -> RowSums:
    """Everything the row figures of these queries need, in one pass over the keys."""
    block = head.block(rows)
    sums = RowSums(block, head.value.shape[-1], top_k, bounded=head.bound < SAFE_BITS)
    kept = head.visibility.kept
    with scratch.lent() as (score_buffer, weight_buffer):
        for keys, seen_by_all in block.interval.tiles(sizes.keys):
            scores = head.scores(block, keys, score_buffer)
            ranks = torch.arange(keys.start, keys.stop, device=kept.device)
            hidden = None if seen_by_all else block.interval.hides(ranks)
            sums.add_scores(scores, hidden, keys.start, weight_buffer)
            sums.add_weights(scores, head.take(head.value, keys), kept[keys], weight_buffer)
    return sums
