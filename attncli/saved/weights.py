"""Attention weights from another tool: an array by query and key, and the tokens that belong to it."""

import json
from collections.abc import Sequence

import numpy as np

from attncli.errors import UserError
from attncli.report import NamedTensor
from attncli.saved.content import read_text, refuse_size
from attncli.saved.tensors import LARGEST

# The axes of an array, by their number.
AXES = {2: ("query", "key"), 3: ("head", "query", "key"), 4: ("layer", "head", "query", "key")}
# Peak memory, measured: one layer's statistics in float64, and an atlas of all weights.
BYTES_PER_WEIGHT, BYTES_SHOWN = 80, 90


def checked_weights(
    array: np.ndarray,
    name: str,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None,
    *,
    most_bytes: int | None = None,
) -> NamedTensor:
    """The array with named axes; UserError where it cannot be attention, or has another number of tokens."""
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


def read_tokens(file: str) -> tuple[str, ...]:
    """The tokens of a file, one per line or as a JSON list, unchanged (an empty line is an empty token)."""
    text, name = read_text(file)
    listed = _json_list(text)
    if listed is not None:
        return listed
    if file.lower().endswith(".json"):
        raise UserError(f"{name}: must be a JSON list of texts")
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        raise UserError(f"{name}: is empty: it holds no token")
    return tuple(line.removesuffix("\r") for line in lines)


def _json_list(text: str) -> tuple[str, ...] | None:
    """The texts of a JSON list; None for anything else: `[CLS]` is a valid token on a line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_list = isinstance(found, list) and all(isinstance(token, str) for token in found)
    return tuple(found) if is_list and found else None
