"""One block of queries against all keys it sees, a tile at a time."""

from dataclasses import dataclass

import torch

from .row_sums import SAFE_BITS, RowSums
from .scores import Head
from .scratch import Scratch


@dataclass(frozen=True)
class TileSizes:
    """Queries and keys of a tile. 256 x 1,024 float32 scores are 1 MB, the second-level cache of a core."""

    queries: int = 512
    keys: int = 1024


def sum_rows(head: Head, rows: slice, top_k: int, sizes: TileSizes, scratch: Scratch) -> RowSums:
    """Everything the row figures of these queries need, in one pass over the keys."""
    block = head.block(rows)
    sums = RowSums(block, head.value.shape[-1], top_k, bounded=head.bound < SAFE_BITS)
    kept = head.visibility.kept
    with scratch.lent() as (score_buffer, weight_buffer):
        for keys, seen_by_all in block.interval.tiles(sizes.keys):
            scores = head.scores(block, keys, score_buffer)
            ranks = torch.arange(keys.start, keys.stop, device=kept.device)
            sums.add_scores(scores, None if seen_by_all else block.interval.hides(ranks), keys.start)
            sums.add_weights(scores, head.take(head.value, keys), kept[keys], weight_buffer)
    return sums
