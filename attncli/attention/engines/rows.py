"""The everyday engine: whole rows, in tiles of about a million scores, everything from each tile at once."""

from collections.abc import Callable

import torch

from attncli.attention.engines.parts import PARTS, Part
from attncli.attention.engines.tile import Source, blocks, tiles
from attncli.attention.results import Computed, Wanted


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
