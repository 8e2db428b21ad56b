"""Numbers as positions on a colour map, and the colour maps of terminals."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

# Each map has 256 colours, written as hexadecimal red, green and blue.
# viridis (van der Walt and Smith, 2015; CC0): even steps look even, also in grey and to the colour-blind.
# coolwarm (Moreland, "Diverging color maps for scientific visualization", 2009): blue below zero, red above.
_, VIRIDIS, _, COOLWARM = Path(__file__).with_name("colormaps.txt").read_text(encoding="ascii").split()
# The smallest ratio between the ends of a logarithmic weight scale, so that nearly uniform rows look uniform.
LEAST_SPAN = 10.0


def colour_map(is_diverging: bool) -> np.ndarray:
    """Return the colour map for amounts, or the one for numbers of both signs."""
    return colours(COOLWARM if is_diverging else VIRIDIS)


def colours(hexadecimal: str) -> np.ndarray:
    """Return the 256 colours of a map, of shape (256, 3): red, green and blue from 0 to 255."""
    return np.frombuffer(bytes.fromhex(hexadecimal), dtype=np.uint8).reshape(256, 3)


class Shading(NamedTuple):
    """The position of each number on its colour map, from 0 to 1 (NaN: missing), and the map's end values.

    If the map `is_diverging`, zero is in the middle. `scale` is the scale in use; a logarithmic scale needs
    amounts. With `row`, each row has its own range, and the end values are those of the whole matrix.
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
    """Return positions on the map: linear, logarithmic, or linear in each row separately.

    `values` is a matrix, or a stack of matrices with common end values, which also cover `compared`. The
    first `skip_keys` columns are excluded from the ends and have no position, so that a sink does not
    dominate the colours. With `log`, zero has position 0. With `from_zero`, the low end of amounts is 0 or,
    on a logarithmic scale, at most a tenth of the high end.
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
    """Return the numbers in float64, with NaN for missing numbers and for the first keys."""
    numbers = np.where(np.isfinite(values), values, np.nan).astype(np.float64)
    numbers[..., :skip_keys] = np.nan
    return numbers


def _between(numbers: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return 0 at the low end and 1 at the high end; if both are equal, 1 for amounts above zero, else 0."""
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


LEVELS = 256
NONE = LEVELS  # the level of a cell that has no number

# The terminal chooses its 16 colours, so lightness distinguishes them: blue, bright blue, cyan, bright
# green, bright yellow grow lighter in every common scheme. Where signs differ, blue meets red at white.
NAMED_STEPS = (4, 12, 6, 10, 11)
NAMED_DIVERGING = (4, 12, 7, 9, 1)

# The 256 colours, starting with number 16: a cube with six steps per side, then greys.
CUBE_STEPS = (0, 95, 135, 175, 215, 255)
GREYS = range(8, 248, 10)
FIXED = np.array([*product(CUBE_STEPS, repeat=3), *zip(GREYS, GREYS, GREYS, strict=True)])
# Shades that mix one colour over the one before it: a quarter, a half, three quarters.
SHADES = "░▒▓"


class Palette(NamedTuple):
    """Escape sequence parameters for each level and, last, for the terminal's default colours.

    `fills` holds parameters and a character that fill a whole cell, if levels can be mixed.
    """

    foregrounds: tuple[str, ...]
    backgrounds: tuple[str, ...]
    fills: tuple[tuple[str, str], ...]


def lab(colors: np.ndarray) -> np.ndarray:
    """Convert sRGB colours from 0 to 255 (D65) to CIE L*a*b*, where distances are roughly perceptual."""
    linear = np.where(colors > 10.31, ((colors / 255 + 0.055) / 1.055) ** 2.4, colors / 255 / 12.92)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / to_xyz.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def nearest_fixed(colors: np.ndarray) -> list[int]:
    """Return the nearest of the 256 colours for each colour; lightness counts three times."""
    differences = lab(FIXED)[np.newaxis] - lab(colors)[:, np.newaxis]
    distances = (differences**2 * [9, 1, 1]).sum(axis=-1)
    numbers: list[int] = (16 + distances.argmin(axis=1)).tolist()
    return numbers


def _named(number: int, first: int) -> str:
    return str(first + number if number < 8 else first + 60 + number - 8)


def level_colours(depth: str, is_diverging: bool) -> list[tuple[int, ...]]:
    """Return the colour of each level: a terminal's colour number or, in 24 bits, red, green and blue."""
    if depth == "16":
        steps = NAMED_DIVERGING if is_diverging else NAMED_STEPS
        return [(steps[level * len(steps) // LEVELS],) for level in range(LEVELS)]
    table = colour_map(is_diverging)
    return [(n,) for n in nearest_fixed(table)] if depth == "256" else list(map(tuple, table.tolist()))


def _named_palette(is_diverging: bool) -> Palette:
    steps = NAMED_DIVERGING if is_diverging else NAMED_STEPS
    # Each step is a pure colour, with three mixtures between neighbouring colours.
    mixtures = [(_named(steps[0], 40), " ")]
    for below, above in pairwise(steps):
        mixtures += [(f"{_named(above, 30)};{_named(below, 40)}", shade) for shade in SHADES]
        mixtures.append((_named(above, 40), " "))
    fills = [mixtures[level * len(mixtures) // LEVELS] for level in range(LEVELS)]
    numbers = level_colours("16", is_diverging)
    foregrounds, backgrounds = ([_named(n, first) for (n,) in numbers] for first in (30, 40))
    return Palette((*foregrounds, "39"), (*backgrounds, "49"), (*fills, ("39;49", " ")))


@lru_cache
def palette(colors: str, is_diverging: bool) -> Palette:
    """Return the escape parameters of 256 levels and of a missing number, for any depth except `none`."""
    if colors == "16":
        return _named_palette(is_diverging)
    kind = 5 if colors == "256" else 2
    texts = [";".join(map(str, (kind, *colour))) for colour in level_colours(colors, is_diverging)]
    backgrounds = (*(f"48;{t}" for t in texts), "49")
    return Palette((*(f"38;{t}" for t in texts), "39"), backgrounds, tuple((b, " ") for b in backgrounds))


# The bits of each channel that distinguish a picture's colours before they become the nearest of 256.
CUBE_BITS = 5


def picture_palette(rgb: np.ndarray, colors: str) -> tuple[np.ndarray, Palette]:
    """Return the level of each pixel of a picture (row, column, 3), and its colours: 24 bits or from 256.

    The last level is the terminal's background, as in `palette`.
    """
    kept = rgb.astype(np.int64)
    if colors == "256":
        kept = kept >> (8 - CUBE_BITS) << (8 - CUBE_BITS) | 1 << (7 - CUBE_BITS)
    table, places = np.unique((kept * [1 << 16, 1 << 8, 1]).sum(axis=-1), return_inverse=True)
    used = np.stack([table >> 16, table >> 8 & 255, table & 255], axis=-1)
    kind = 5 if colors == "256" else 2
    numbers = [(n,) for n in nearest_fixed(used)] if colors == "256" else used.tolist()
    texts = [";".join(map(str, (kind, *colour))) for colour in numbers]
    inks, papers = ((*(f"{first}8;{text}" for text in texts), f"{first}9") for first in (3, 4))
    return places.reshape(rgb.shape[:2]), Palette(inks, papers, ())


def levels(places: np.ndarray) -> np.ndarray:
    """Return the level, from 0 to 255, of each position from 0 to 1, or NONE for NaN."""
    is_number = ~np.isnan(places)
    numbers = np.minimum(np.where(is_number, places, 0) * LEVELS, LEVELS - 1)
    return np.where(is_number, numbers.astype(np.int64), NONE)
