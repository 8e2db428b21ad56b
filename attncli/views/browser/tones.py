"""Levels of the colour map as pieces of lines: coloured, or characters where there is no colour."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attncli.views.terminal.half_blocks import LOWER, NO_NUMBER, RAMP, UPPER
from attncli.views.terminal.palettes import LEVELS, NONE, level_colours

BOLD, DIM, CHOSEN = Style(bold=True), Style(dim=True), Style(reverse=True, bold=True)


@lru_cache
def _colors(depth: str, is_diverging: bool) -> tuple[Color | None, ...]:
    """The colour of each level, and none for no number."""
    make = Color.from_rgb if depth == "truecolor" else Color.from_ansi
    return (*(make(*colour) for colour in level_colours(depth, is_diverging)), None)


@lru_cache(maxsize=16384)
def _style(depth: str, is_diverging: bool, ink: int, ground: int) -> Style:
    table = _colors(depth, is_diverging)
    return Style(color=table[ink], bgcolor=table[ground])


def mark(level: int) -> str:
    """The character of a level: of ten, the last for the largest."""
    return NO_NUMBER if level == NONE else RAMP[level * len(RAMP) // LEVELS]


def _runs(row: np.ndarray) -> Iterator[tuple[int, int]]:
    """Where each run of equal numbers begins, and how long it is."""
    if len(row):
        starts = np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1))
        yield from zip(starts.tolist(), np.diff(starts, append=len(row)).tolist(), strict=True)


@dataclass(frozen=True)
class Tones:
    """How a terminal of some depth of colour shows the levels of a map."""

    depth: str
    is_diverging: bool

    @property
    def has_color(self) -> bool:
        """Whether there is any colour."""
        return self.depth != "none"

    def cells(self, row: np.ndarray, cell_width: int) -> list[Segment]:
        """A line of cells of that many characters, one a level."""
        if not self.has_color:
            return [Segment("".join(mark(level) * cell_width for level in row.tolist()))]
        return [
            Segment(" " * (length * cell_width), _style(self.depth, self.is_diverging, NONE, int(row[start])))
            for start, length in _runs(row)
        ]

    def half_blocks(self, upper: np.ndarray, lower: np.ndarray) -> list[Segment]:
        """Two rows of levels on one line, a character a column."""
        pieces = []
        for start, length in _runs(upper * (NONE + 1) + lower):
            above, below = int(upper[start]), int(lower[start])
            shape, ink, ground = UPPER, above, below
            if above == below:
                shape, ink = " ", NONE
            elif above == NONE:
                shape, ink, ground = LOWER, below, NONE
            style = _style(self.depth, self.is_diverging, ink, ground)
            pieces.append(Segment(shape * length, style))
        return pieces

    def chosen(self, level: int) -> Segment:
        """The mark of what is chosen, two cells wide."""
        if not self.has_color or level == NONE:
            return Segment("[]", CHOSEN)
        color = _colors(self.depth, self.is_diverging)[level]
        contrast = Color.from_ansi(0 if level > LEVELS // 2 and not self.is_diverging else 15)
        return Segment("[]", Style(color=contrast, bgcolor=color, bold=True))
