"""Top keys whose scores differ by rounding alone: the earlier goes first, as in whole rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tiles.scores import LOG2_E, LOWEST, Head
from attncli.attention.engines.tiles.tiles import TileSizes, score_tiles
from attncli.statistics.top_keys import are_equal, top_keys

ROWS = 16
"""Whole rows that are searched together at most."""


def break_ties(
    head: Head,
    rows: slice,
    top_scores: Float[Tensor, "query more"],
    top_ranks: Int[Tensor, "query more"],
    sizes: TileSizes,
    scratch: Scratch,
) -> None:
    """Puts in order all but the last, which is one more than is wanted: whole rows again where two tie.

    Tiles keep any of equal scores. Such rows are few, but for texts that repeat their words.
    """
    scores, ranks = top_scores[:, :-1], top_ranks[:, :-1]
    best, next_best = scores, top_scores[:, 1:]
    is_tied = (are_equal(next_best, best, LOG2_E) & (next_best > LOWEST)).any(dim=-1)
    num_rows = min(ROWS, sizes.queries)
    with_ties = {row // num_rows for row in is_tied.nonzero()[:, 0].tolist()}
    for start in (num_rows * strip for strip in sorted(with_ties)):
        strip = slice(start, min(start + num_rows, len(is_tied)))
        block = head.block(slice(rows.start + strip.start, rows.start + strip.stop))
        first, stop = int(block.interval.first.min()), int(block.interval.stop.max())
        whole = block.query.new_empty(len(block.query), stop - first)
        for tile in score_tiles(head, block, sizes, scratch):
            whole[:, tile.keys.start - first : tile.keys.stop - first] = tile.scores
        hidden = block.interval.hides(torch.arange(first, stop, device=whole.device))
        whole.masked_fill_(hidden, -torch.inf)
        places = top_keys(whole, scores.shape[1], unit=LOG2_E)
        tied = is_tied[strip].unsqueeze(-1)
        none, found = places < 0, whole.gather(-1, places.clamp(min=0))
        scores[strip] = torch.where(tied, found.masked_fill(none, LOWEST), scores[strip])
        ranks[strip] = torch.where(tied, places + first, ranks[strip])
