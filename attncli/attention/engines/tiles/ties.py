"""Top keys whose scores differ by rounding alone: the earlier goes first, as in whole rows."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.scores import LOG2_E, LOWEST, Head
from attncli.statistics.top_keys import are_equal, top_keys

ROWS = 16
"""Whole rows that are looked through together."""


def break_ties(
    head: Head, rows: slice, top_scores: Float[Tensor, "query more"], top_ranks: Int[Tensor, "query more"]
) -> None:
    """Puts in order all but the last, which is one more than is wanted: whole rows again where two tie.

    Tiles keep any of equal scores. Such rows are few, but for texts that repeat their words.
    """
    scores, ranks = top_scores[:, :-1], top_ranks[:, :-1]
    best, next_best = scores, top_scores[:, 1:]
    is_tied = (are_equal(next_best, best, LOG2_E) & (next_best > LOWEST)).any(dim=-1)
    with_ties = {row // ROWS for row in is_tied.nonzero()[:, 0].tolist()}
    for start in (ROWS * strip for strip in sorted(with_ties)):
        strip = slice(start, min(start + ROWS, len(is_tied)))
        block = head.block(slice(rows.start + strip.start, rows.start + strip.stop))
        keys = slice(int(block.interval.first.min()), int(block.interval.stop.max()))
        num_keys, dim = keys.stop - keys.start, block.query.shape[-1]
        whole = head.scores(block, keys, block.query.new_empty((len(block.query) + dim) * num_keys))
        hidden = block.interval.hides(torch.arange(keys.start, keys.stop, device=whole.device))
        whole.masked_fill_(hidden, -torch.inf)
        places = top_keys(whole, scores.shape[1], unit=LOG2_E)
        tied = is_tied[strip].unsqueeze(-1)
        none, found = places < 0, whole.gather(-1, places.clamp(min=0))
        scores[strip] = torch.where(tied, found.masked_fill(none, LOWEST), scores[strip])
        ranks[strip] = torch.where(tied, places + keys.start, ranks[strip])
