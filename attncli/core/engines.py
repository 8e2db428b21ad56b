"""What computes a layer's attention; which engine does follows from size and from what is wanted."""

from collections.abc import Callable
from typing import NamedTuple

from attncli.core import rows, tiles
from attncli.core.row_tiles import Source
from attncli.core.wanted import Computed, Wanted

Progress = Callable[[float], None]


class Engine(NamedTuple):
    """A function of a layer, or of given weights, and whether it suits their size and what is wanted."""

    attend: Callable[..., Computed]
    suits: Callable[[Source, Wanted], bool]


# The first that suits is taken; the last suits everything.
ENGINES = {
    "tiles": Engine(tiles.attend, tiles.suits),
    "rows": Engine(rows.attend, lambda source, wanted: True),
}


def engine_for(source: Source, wanted: Wanted) -> str:
    """The name of the first engine that suits."""
    return next(name for name, engine in ENGINES.items() if engine.suits(source, wanted))


def attend(source: Source, wanted: Wanted, progress: Progress | None = None) -> Computed:
    """What is wanted of a layer, or of given weights, by the engine that suits."""
    return ENGINES[engine_for(source, wanted)].attend(source, wanted, progress)
