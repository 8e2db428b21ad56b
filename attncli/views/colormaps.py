"""Numbers as places on a colour map: viridis for amounts, a diverging map where signs differ."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Each map has 256 colours, as hexadecimal red, green, blue.
# viridis (van der Walt and Smith, 2015; CC0): even steps look even, in grey and to the colour-blind, too.
# coolwarm (Moreland, "Diverging color maps for scientific visualization", 2009): blue below zero, red above.
_, VIRIDIS, _, COOLWARM = Path(__file__).with_name("colormaps.txt").read_text().split()
# The least ratio of the ends of a logarithmic scale of weights: nearly uniform rows look uniform.
LEAST_SPAN = 10.0


def colour_map(is_diverging: bool) -> np.ndarray:
    """The colours of amounts, or of numbers of both signs."""
    return colours(COOLWARM if is_diverging else VIRIDIS)


def colours(hexadecimal: str) -> np.ndarray:
    """The 256 colours of a map, of shape (256, 3), each red, green, blue from 0 to 255."""
    return np.frombuffer(bytes.fromhex(hexadecimal), dtype=np.uint8).reshape(256, 3)


class Shading(NamedTuple):
    """The place of each number on its map, from 0 to 1 (NaN: no number), and the numbers at the map's ends.

    `is_diverging`: zero is in the middle. `scale` is the one used: a logarithm needs amounts. With `row`
    the ends are those of the whole matrix; each row has its own.
    """

    places: np.ndarray
    low: float
    high: float
    is_diverging: bool
    scale: str


def shading(
    values: np.ndarray,
    scale: str = "linear",
    *,
    skip_keys: int = 0,
    from_zero: bool = False,
    compared: Iterable[np.ndarray] = (),
) -> Shading:
    """Places on the map: linear between the ends, even in the logarithm, or linear in each row by itself.

    `values` is a matrix, or a stack of matrices that share their ends, also with those of `compared`. The
    first `skip_keys` columns are excluded from the ends and have no place, so that a sink does not take all
    the colours. With `log`, zero has the place 0. `from_zero`: the low end of amounts is 0, that of their
    logarithm at most a tenth of the high end.
    """
    numbers = _numbers(values, skip_keys)
    seen = ~np.isnan(numbers)
    others = (_numbers(other, skip_keys) for other in compared)
    every = np.concatenate([numbers[seen], *(other[~np.isnan(other)] for other in others)])
    if not every.size:
        return Shading(numbers, np.nan, np.nan, False, "linear")
    least, most = float(every.min()), float(every.max())
    if least < 0 < most:
        return _diverging(numbers, seen, max(-least, most), "row" if scale == "row" else "linear")
    if scale == "log" and least >= 0 and most > 0:
        above = float(every[every > 0].min())
        return _logarithmic(numbers, min(above, most / LEAST_SPAN) if from_zero else above, most)
    first = np.inf
    if from_zero and least >= 0:
        least = first = 0.0
    if scale == "row":
        low = np.min(numbers, axis=-1, keepdims=True, initial=first, where=seen)
        high = np.max(numbers, axis=-1, keepdims=True, initial=-np.inf, where=seen)
        return Shading(_between(numbers, low, high), least, most, False, "row")
    return Shading(_between(numbers, np.array(least), np.array(most)), least, most, False, "linear")


def _numbers(values: np.ndarray, skip_keys: int) -> np.ndarray:
    """In float64, NaN for no number and for the first keys."""
    numbers = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    numbers[..., :skip_keys] = np.nan
    return numbers


def _between(numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """0 at the low end, 1 at the high end; where the two are equal, 1 for amounts above zero, else 0."""
    span = high - low
    flat = ~(span > 0)
    places = (numbers - np.where(flat, 0, low)) / np.where(flat, 1, span)
    return np.where(flat & ~np.isnan(numbers), np.where(high > 0, 1.0, 0.0), places)


def _diverging(numbers: np.ndarray, seen: np.ndarray, size: float, scale: str) -> Shading:
    sizes: np.ndarray | float = size
    if scale == "row":
        sizes = np.max(np.abs(numbers), axis=-1, keepdims=True, initial=0, where=seen)
        sizes = np.where(sizes > 0, sizes, 1)
    return Shading(0.5 + 0.5 * numbers / sizes, -size, size, True, scale)


def _logarithmic(numbers: np.ndarray, least: float, most: float) -> Shading:
    positive = numbers > 0
    logarithms = np.log(numbers, where=positive, out=np.zeros_like(numbers))
    low, high = np.log(least), np.log(most)
    places = _between(logarithms, np.array(low), np.array(high)) if high > low else np.ones_like(numbers)
    places = np.where(np.isnan(numbers), np.nan, np.where(positive, places, 0))
    return Shading(places, least, most, False, "log")
