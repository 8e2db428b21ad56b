"""Colour maps as a terminal can show them: 24 bits, the 256 fixed colours, or steps of the 16 named ones."""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attncli.views.colormaps import colour_map

LEVELS = 256
NONE = LEVELS  # the level of a cell without a number

# The 16 colours are the terminal's own, so lightness distinguishes them: blue, bright blue, cyan, bright
# green, bright yellow grow lighter in every common scheme. Where signs differ, blue meets red at white.
NAMED_STEPS = (4, 12, 6, 10, 11)
NAMED_DIVERGING = (4, 12, 7, 9, 1)

# The 256 colours from number 16 on: a cube with six steps per side, then greys.
CUBE_STEPS = (0, 95, 135, 175, 215, 255)
FIXED = np.array(
    [(r, g, b) for r in CUBE_STEPS for g in CUBE_STEPS for b in CUBE_STEPS]
    + [(8 + 10 * i,) * 3 for i in range(24)]
)
# Shades of one colour over the one before: a quarter, half, three quarters.
SHADES = "░▒▓"


class Palette(NamedTuple):
    """Parameters of escape sequences for each level and, last, for the terminal's own colours.

    `fills`: parameters and the character that fill a whole cell, where steps can be mixed.
    """

    foregrounds: tuple[str, ...]
    backgrounds: tuple[str, ...]
    fills: tuple[tuple[str, str], ...]


def lab(colors: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of sRGB colours from 0 to 255 (D65), in which distances are roughly perceptual."""
    linear = np.where(colors > 10.31, ((colors / 255 + 0.055) / 1.055) ** 2.4, colors / 255 / 12.92)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / to_xyz.sum(axis=1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def nearest_fixed(colors: np.ndarray) -> list[int]:
    """The number of the nearest of the 256 colours for each; lightness, which orders, counts threefold."""
    differences = lab(FIXED)[np.newaxis] - lab(colors)[:, np.newaxis]
    distances = (differences**2 * [9, 1, 1]).sum(axis=-1)
    numbers: list[int] = (16 + distances.argmin(axis=1)).tolist()
    return numbers


def _named(number: int, first: int) -> str:
    return str(first + number if number < 8 else first + 60 + number - 8)


def level_colours(depth: str, is_diverging: bool) -> list[tuple[int, ...]]:
    """The colour of each level: the number of a terminal colour, or red, green and blue in 24 bits."""
    if depth == "16":
        steps = NAMED_DIVERGING if is_diverging else NAMED_STEPS
        return [(steps[level * len(steps) // LEVELS],) for level in range(LEVELS)]
    table = colour_map(is_diverging)
    return [(n,) for n in nearest_fixed(table)] if depth == "256" else list(map(tuple, table.tolist()))


def _named_palette(is_diverging: bool) -> Palette:
    steps = NAMED_DIVERGING if is_diverging else NAMED_STEPS
    # A pure step at each end and for each one between, three mixtures from step to step.
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
    """The escape parameters of 256 levels and of no number, for a depth other than `none`."""
    if colors == "16":
        return _named_palette(is_diverging)
    kind = 5 if colors == "256" else 2
    texts = [";".join(map(str, (kind, *colour))) for colour in level_colours(colors, is_diverging)]
    backgrounds = (*(f"48;{t}" for t in texts), "49")
    return Palette((*(f"38;{t}" for t in texts), "39"), backgrounds, tuple((b, " ") for b in backgrounds))


def levels(places: np.ndarray) -> np.ndarray:
    """The level of each place from 0 to 1: its colour's number from 0 to 255; NONE for NaN."""
    is_number = ~np.isnan(places)
    numbers = np.minimum(np.where(is_number, places, 0) * LEVELS, LEVELS - 1)
    return np.where(is_number, numbers.astype(np.int64), NONE)
