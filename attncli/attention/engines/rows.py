"""The everyday engine: whole rows, in tiles of about a million scores, everything from each tile at once."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch

from attncli.attention.engines.jobs import run_jobs, torch_threads
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
from attncli.attention.engines.scratch import Scratch
from attncli.attention.engines.tile import NUM_BUFFERS, Block, Source, blocks_of, tiles
from attncli.attention.results import Computed, Wanted

LEAST_FOR_JOBS = 2**24
"""Scores of a layer, those of 1,182 tokens and 12 heads, from which threads of our own over its queries were
measured to be faster than torch's."""

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
    with torch.no_grad(), Scratch(source.like, NUM_BUFFERS) as scratch:
        parts: list[Part] = [make(source, wanted) for asks, make in PARTS if asks(wanted)]

        def take(some: list[Block]) -> list[Callable[[], None]]:
            """Everything of some queries; gives what is to be done in order."""
            added = [
                part.add(tile)
                for tile in tiles(source, some, scratch, keep_raw=wanted.scores)
                for part in parts
            ]
            return [add for add in added if add is not None]

        jobs = [partial(take, some) for some in blocks_of(source)]
        is_long = (
            len(jobs) > 1 and source.like.device.type == "cpu" and math.prod(source.shape) >= LEAST_FOR_JOBS
        )
        with torch_threads(1) if is_long else nullcontext(1) as num_threads:
            for number, added in enumerate(run_jobs(jobs, num_threads), 1):
                for add in added:
                    add()
                if progress is not None:
                    progress(number / len(jobs))
        return Computed(**{name: value for part in parts for name, value in part.result().items()})
