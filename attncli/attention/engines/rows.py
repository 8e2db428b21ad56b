"""The everyday engine: whole rows, in tiles of about a million scores, everything from each tile at once."""

from collections.abc import Callable

import torch

from attncli.attention.engines.matrices import (
    HeadMean,
    KeptHeads,
    Matrices,
    PatternMass,
    PooledMaps,
    ReceivedMass,
)
from attncli.attention.engines.parts import (
    Output,
    Part,
    PreviousToken,
    RowStatistics,
    ScoreMoments,
    TopKeys,
)
from attncli.attention.engines.tile import Source, blocks, tiles
from attncli.attention.results import Computed, Wanted

# Whether a part is asked for, and what makes it.
PARTS: tuple[tuple[Callable[[Wanted], bool], Callable[[Source, Wanted], Part]], ...] = (
    (lambda wanted: True, RowStatistics),
    (lambda wanted: wanted.top_k > 0, TopKeys),
    (lambda wanted: wanted.previous_token, PreviousToken),
    (lambda wanted: wanted.output, Output),
    (lambda wanted: wanted.weights or wanted.scores, Matrices),
    (lambda wanted: bool(wanted.kept_heads), KeptHeads),
    (lambda wanted: wanted.head_mean, HeadMean),
    (lambda wanted: wanted.score_moments, ScoreMoments),
    (lambda wanted: wanted.received_mass, ReceivedMass),
    (lambda wanted: wanted.pooled is not None, PooledMaps),
    (lambda wanted: wanted.patterns is not None, PatternMass),
)


def attend(source: Source, wanted: Wanted, progress: Callable[[float], None] | None = None) -> Computed:
    """What is wanted of a layer, or of given weights: scores are computed once, memory is linear in length.

    `progress` is called with the fraction of the rows that are done.
    """
    with torch.no_grad():
        parts: list[Part] = [make(source, wanted) for asks, make in PARTS if asks(wanted)]
        num_tiles = sum(1 for _ in blocks(source.shape, getattr(source, "group", 1))) if progress else 0
        for number, tile in enumerate(tiles(source, keep_raw=wanted.scores), 1):
            for part in parts:
                part.add(tile)
            if progress is not None:
                progress(number / num_tiles)
        return Computed(**{name: value for part in parts for name, value in part.result().items()})
