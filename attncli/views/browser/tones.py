"""Places on the colour map as rich styles, or as characters where there is no colour."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attncli.views.colormaps import COOLWARM, VIRIDIS, colours

LEVELS = 256
NONE = LEVELS  # the level of a cell without a number
RAMP = " .:-=+*#%@"
NO_NUMBER = "·"
BLANK, BOLD, DIM, CHOSEN = Style(), Style(bold=True), Style(dim=True), Style(reverse=True, bold=True)


def levels(places: np.ndarray) -> np.ndarray:
    """The level of each place from 0 to 1: its colour's number; NONE for NaN."""
    finite = np.where(np.isnan(places), 0, places)
    return np.where(np.isnan(places), NONE, np.rint(finite * (LEVELS - 1))).astype(np.int64)


@lru_cache(maxsize=2)
def _colors(is_diverging: bool) -> tuple[Color, ...]:
    table = colours(COOLWARM if is_diverging else VIRIDIS).tolist()
    return tuple(Color.from_rgb(*color) for color in table)


@lru_cache(maxsize=2 * (LEVELS + 1))
def ground(level: int, is_diverging: bool) -> Style:
    """The colour of a level behind blanks."""
    return BLANK if level == NONE else Style(bgcolor=_colors(is_diverging)[level])


@lru_cache(maxsize=2 * (LEVELS + 1))
def ink(level: int, is_diverging: bool) -> Style:
    """The colour of a level for characters."""
    return BLANK if level == NONE else Style(color=_colors(is_diverging)[level])


@lru_cache(maxsize=8192)
def _halves(upper: int, lower: int, is_diverging: bool) -> tuple[str, Style]:
    if upper == lower:
        return " ", ground(lower, is_diverging)
    if upper == NONE:
        return "▄", ink(lower, is_diverging)
    return "▀", ink(upper, is_diverging) + ground(lower, is_diverging)


def mark(level: int) -> str:
    """The character of a level: of ten, the last for the largest."""
    return NO_NUMBER if level == NONE else RAMP[level * len(RAMP) // LEVELS]


def _runs(row: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where each run of equal numbers begins, and how long it is."""
    starts = np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1))
    yield from zip(starts.tolist(), np.diff(starts, append=len(row)).tolist(), strict=True)


def cells(row: np.ndarray, cell_width: int, is_diverging: bool, *, has_color: bool) -> list[Segment]:
    """A line of cells of that many characters, one a level."""
    if not len(row):
        return []
    if not has_color:
        return [Segment("".join(mark(level) * cell_width for level in row.tolist()))]
    return [
        Segment(" " * (length * cell_width), ground(int(row[start]), is_diverging))
        for start, length in _runs(row)
    ]


def half_blocks(upper: np.ndarray, lower: np.ndarray, is_diverging: bool) -> list[Segment]:
    """Two rows of levels on one line, a character a column."""
    pieces = []
    for start, length in _runs(upper * (NONE + 1) + lower):
        shape, style = _halves(int(upper[start]), int(lower[start]), is_diverging)
        pieces.append(Segment(shape * length, style))
    return pieces
