"""What computes a layer's attention; which engine does follows from size."""

from collections.abc import Callable

from attncli.attention.engines import rows, tiles
from attncli.attention.engines.tile import Source
from attncli.attention.layer import AttentionLayer
from attncli.attention.results import Computed, Wanted

Progress = Callable[[float], None]

ENGINES: dict[str, Callable[..., Computed]] = {"rows": rows.attend, "tiles": tiles.attend}

LEAST_KEYS_OF_TILES = 1024
"""Keys of a row from which tiles were measured to be faster."""


def engine_for(source: Source, wanted: Wanted) -> str:
    """`tiles` for long rows where nothing is wanted that takes them whole, else `rows`."""
    if 0 in source.shape:
        return "tiles"  # which need no key to be there
    if (
        not isinstance(source, AttentionLayer)
        or source.rules.bias is not None
        or source.visibility.rule is not None
    ):
        return "rows"
    takes_whole_rows = (
        wanted.weights
        or wanted.scores
        or wanted.kept_heads
        or wanted.head_mean
        or wanted.patterns is not None
    )
    return "rows" if takes_whole_rows or source.shape[3] < LEAST_KEYS_OF_TILES else "tiles"


def attend(source: Source, wanted: Wanted, progress: Progress | None = None) -> Computed:
    """What is wanted of a layer, or of given weights, by the engine that suits their size."""
    return ENGINES[engine_for(source, wanted)](source, wanted, progress)
