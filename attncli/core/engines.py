"""What computes a layer's attention; which engine does follows from size and from what is wanted."""

from collections.abc import Callable
from typing import NamedTuple

from attncli.core import rows
from attncli.core.layer import AttentionLayer
from attncli.core.row_tiles import GivenWeights, Source
from attncli.core.wanted import Computed, Wanted

Progress = Callable[[float], None]


class Engine(NamedTuple):
    """A function of a layer, or of given weights, and whether it suits their size and what is wanted."""

    attend: Callable[..., Computed]
    suits: Callable[[Source, Wanted], bool]


LEAST_KEYS = 1024
"""Keys of a row from which tiles were measured to be faster than whole rows."""


def is_long(source: Source, wanted: Wanted) -> bool:
    """Whether rows are long and nothing is wanted that takes them whole; or there is no key at all."""
    if 0 in source.shape:
        return True
    if (
        isinstance(source, GivenWeights)
        or source.rules.bias is not None
        or source.visibility.rule is not None
    ):
        return False
    takes_whole_rows = (
        wanted.weights
        or wanted.scores
        or wanted.kept_heads
        or wanted.head_mean
        or wanted.patterns is not None
    )
    return not takes_whole_rows and source.shape[3] >= LEAST_KEYS


def attend_by_tiles(layer: AttentionLayer, wanted: Wanted, progress: Progress | None = None) -> Computed:
    """What the engine `tiles` gives; most runs have no long row and never import it."""
    from attncli.core import tiles

    return tiles.attend(layer, wanted, progress)


# The first that suits is taken; the last suits everything.
ENGINES = {
    "tiles": Engine(attend_by_tiles, is_long),
    "rows": Engine(rows.attend, lambda source, wanted: True),
}


def engine_for(source: Source, wanted: Wanted) -> str:
    """The name of the first engine that suits."""
    return next(name for name, engine in ENGINES.items() if engine.suits(source, wanted))


def attend(source: Source, wanted: Wanted, progress: Progress | None = None) -> Computed:
    """What is wanted of a layer, or of given weights, by the engine that suits."""
    return ENGINES[engine_for(source, wanted)].attend(source, wanted, progress)
