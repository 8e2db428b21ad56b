"""Small layers in float64, by the reference definition."""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from attncli.core import reference
from attncli.core.engines import Engine
from attncli.core.layer import AttentionLayer, Computed, Wanted
from attncli.core.row_tiles import LayerOrWeights

MOST_SCORES = 4096


def suits(source: LayerOrWeights, wanted: Wanted) -> bool:
    """Accept layers with at most MOST_SCORES scores."""
    return isinstance(source, AttentionLayer) and 0 < prod(source.shape) <= MOST_SCORES


def attend(
    layer: AttentionLayer, wanted: Wanted, progress: Callable[[float], None] | None = None
) -> Computed:
    """Compute everything from whole matrices; the output has the dtype of the layer."""
    computed = reference.attend(layer, wanted)
    assert computed.output is not None
    return replace(computed, output=computed.output.to(layer.query.dtype))


EXACT = Engine(attend, suits)
