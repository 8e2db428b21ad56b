"""An array that somebody else computed as weights by query and key, with its tokens held against it."""

from collections.abc import Sequence

import numpy as np

from attncli.errors import UserError
from attncli.report import NamedTensor
from attncli.saved.boxes import LARGEST
from attncli.saved.content import refuse_size

# The axes of an array by how many it has.
AXES = {2: ("query", "key"), 3: ("head", "query", "key"), 4: ("layer", "head", "query", "key")}
# At the peak, measured: one layer's statistics in float64, and an atlas of all weights.
BYTES_PER_WEIGHT, BYTES_SHOWN = 80, 90


def checked_weights(
    array: np.ndarray,
    name: str,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    *,
    most_bytes: int | None = None,
) -> NamedTensor:
    """The array with its axes named; UserError where it is no attention, or tokens are more or fewer."""
    sizes = " × ".join(map(str, array.shape))
    if array.ndim not in AXES:
        wanted = " or ".join(f"({', '.join(axes)})" for axes in AXES.values())
        raise UserError(f"{name}: must have the axes {wanted} (got {sizes or 'a single number'})")
    if array.size == 0:
        raise UserError(f"{name}: is empty ({sizes})")
    if not np.isfinite(array).any():
        raise UserError(f"{name}: holds no number ({sizes}, all NaN or infinite)")
    if (np.abs(array, where=np.isfinite(array), out=np.zeros_like(array)) > np.float64(LARGEST)).any():
        raise UserError(f"{name}: holds a number beyond {LARGEST:g}")
    num_queries, num_keys = array.shape[-2:]
    if tokens is not None and len(tokens) != num_queries:
        raise UserError(f"--tokens: must be {num_queries}, one for each query (got {len(tokens)})")
    if context_tokens is not None and len(context_tokens) != num_keys:
        raise UserError(f"--context-tokens: must be {num_keys}, one for each key (got {len(context_tokens)})")
    if tokens is not None and context_tokens is None and num_keys != num_queries:
        raise UserError(f"--context-tokens: is needed: {name} has {num_queries} queries and {num_keys} keys")
    layer = array[0] if array.ndim == 4 else array
    refuse_size(name, layer.size * BYTES_PER_WEIGHT + array.size * BYTES_SHOWN, most_bytes)
    return NamedTensor(AXES[array.ndim], array)
