"""Arrays as texts for a page: bytes sorted by significance, deflated, in base64.

Small arrays are exact. Large ones become codes of 16 bits, places in a table of values: weights so that the
value rounds to the same four decimals as the weight itself, other numbers as 65,535 even steps. Rows of
weights sum to one, so their codes hold few bits each, which compresses well: 144 heads of 128 x 128 take
under 4 MB whatever the weights are.
"""

import base64
import zlib
from typing import Any

import numpy as np

MAX_EXACT = 100_000  # numbers
STEPS_PER_UNIT = 10_000  # four decimals
# A step of four decimals is cut into FINE / step parts, so that small weights are exact to some 5 percent.
FINE = 20
# Below half a step: codes per halving, and halvings. Smaller numbers get the smallest of these codes.
PER_HALVING, HALVINGS = 4, 20
NUM_LEVELS = 65_535  # the code after them is no number

_STEPS = np.arange(STEPS_PER_UNIT + 1)
_PARTS = np.where(
    _STEPS > 0, np.maximum(1, np.ceil(FINE / np.maximum(_STEPS, 1))), 1 + PER_HALVING * HALVINGS
).astype(np.int64)
_STARTS = np.concatenate([[0], np.cumsum(_PARTS)])
NO_WEIGHT = int(_STARTS[-1])  # the code of no number


def packed(values: np.ndarray) -> str:
    """The bytes of all numbers, the most significant of each first, deflated (RFC 1951), in base64."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    planes = little.view(np.uint8).reshape(-1, values.dtype.itemsize).T[::-1]
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    deflated = compressor.compress(planes.tobytes()) + compressor.flush()
    return base64.b64encode(deflated).decode("ascii")


def encoded(values: np.ndarray) -> dict[str, Any]:
    """An array as the page's script reads it: type, shape, bytes and, for codes, what they mean."""
    if values.dtype.kind in "iub":
        return _array(values.astype(np.int32))
    if values.size <= MAX_EXACT:
        narrow = values.astype(np.float32)
        return _array(narrow if np.array_equal(narrow, values, equal_nan=True) else values.astype(np.float64))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return _array(np.full(values.shape, np.nan, dtype=np.float32))
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and high <= 1:
        table = {"type": "float32", "bytes": packed(weight_table())}
        return {**_array(weight_codes(values)), "table": table, "decimals": 4}
    step = (high - low) / (NUM_LEVELS - 1)
    return {**_array(_levels(values, low, step)), "low": low, "step": step, "decimals": _decimals(step)}


def _array(values: np.ndarray) -> dict[str, Any]:
    return {"type": values.dtype.name, "shape": list(values.shape), "bytes": packed(values)}


def weight_codes(weights: np.ndarray) -> np.ndarray:
    """The place of each number from 0 to 1 in `weight_table`; NO_WEIGHT where there is no number."""
    seen = np.isfinite(weights)
    scaled = np.where(seen, weights, 0).astype(np.float64) * STEPS_PER_UNIT
    steps = np.rint(scaled).astype(np.int64)
    parts = _PARTS[steps]
    part = np.minimum(np.floor((scaled - steps + 0.5) * parts), parts - 1).astype(np.int64)
    least = steps == 0
    part[least] = _part_of_the_least(scaled[least])
    return np.where(seen, _STARTS[steps] + part, NO_WEIGHT).astype(np.uint16)


def _part_of_the_least(scaled: np.ndarray) -> np.ndarray:
    """0 for zero, else 1 + the place in the logarithm from 2^-HALVINGS halves of a step up to one half."""
    positive = scaled > 0
    logarithms = np.log2(2 * scaled, where=positive, out=np.zeros_like(scaled))
    places = np.floor((logarithms + HALVINGS) * PER_HALVING).astype(np.int64)
    return np.where(positive, 1 + places.clip(0, PER_HALVING * HALVINGS - 1), 0)


def weight_table() -> np.ndarray:
    """The value of each code of a weight: the middle of its part; NaN for NO_WEIGHT."""
    halvings = (np.arange(PER_HALVING * HALVINGS) + 0.5) / PER_HALVING - HALVINGS
    steps = np.repeat(_STEPS[1:], _PARTS[1:])
    part = np.arange(len(steps)) - np.repeat(_STARTS[1:-1] - _STARTS[1], _PARTS[1:])
    middles = steps - 0.5 + (part + 0.5) / _PARTS[steps]
    scaled = np.concatenate([[0.0], 0.5 * 2.0**halvings, middles, [np.nan]])
    return (scaled / STEPS_PER_UNIT).astype(np.float32)


def _levels(values: np.ndarray, low: float, step: float) -> np.ndarray:
    places = np.rint((np.where(np.isfinite(values), values, low).astype(np.float64) - low) / (step or 1.0))
    return np.where(np.isfinite(values), places, NUM_LEVELS).astype(np.uint16)


def _decimals(step: float) -> int:
    """How many decimals are certain when numbers are a step apart, at most four."""
    return int(np.clip(np.floor(-np.log10(step)), 0, 4)) if step > 0 else 4
