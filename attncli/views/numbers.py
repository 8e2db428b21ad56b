"""Numbers as texts for people."""

from typing import Any

import numpy as np

NO_NUMBER = "·"
WIDE = 1e7


def fixed(value: Any, precision: int) -> str:
    """A number with that many decimals; whole numbers as they are; very large ones with an exponent."""
    if value is None:
        return NO_NUMBER
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, np.integer):  # an index, where -1 means none
        return str(value) if value >= 0 else NO_NUMBER
    if not np.isfinite(value):
        return NO_NUMBER
    if abs(value) >= WIDE:
        return f"{value:.{precision}e}"
    text = f"{value:.{precision}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def range_ends(low: float, high: float, precision: int, scale: str = "linear") -> tuple[str, str]:
    """The ends of a range; one that rounds to zero beside the other is 0, except on a log scale."""
    least = 0.0 if scale == "log" else 0.5 * 10**-precision * max(abs(low), abs(high))
    first, last = (scalar(0.0 if abs(end) < least else end, precision) for end in (low, high))
    return first, last


def scalar(value: Any, precision: int) -> str:
    """A number of its own: as `fixed`, but with an exponent where it would round to zero."""
    if isinstance(value, float) and value != 0 and abs(value) < 0.5 * 10**-precision:
        return f"{value:.{precision}e}"
    return fixed(value, precision)
