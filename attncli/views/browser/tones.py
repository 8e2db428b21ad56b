"""Levels of the colour map as segments of lines: coloured, or characters where there is no colour."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

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
    """The character of a level: one of ten, the last for the largest."""
    return NO_NUMBER if level == NONE else RAMP[level * len(RAMP) // LEVELS]


@dataclass(frozen=True)
class Tones:
    """How a terminal of that colour depth shows the levels of a map."""

    depth: str
    is_diverging: bool

    def cells(self, row: np.ndarray, cell_width: int) -> list[Segment]:
        """A line of cells of that many characters, one cell per level."""
        if self.depth == "none":
            return [Segment("".join(mark(level) * cell_width for level in row.tolist()))]
        return [
            Segment(" " * (len(list(run)) * cell_width), _style(self.depth, self.is_diverging, NONE, level))
            for level, run in groupby(row.tolist())
        ]

    def half_blocks(self, upper: np.ndarray, lower: np.ndarray) -> list[Segment]:
        """Two rows of levels on one line, one character per column."""
        pieces = []
        for (above, below), run in groupby(zip(upper.tolist(), lower.tolist(), strict=True)):
            shape, ink, ground = UPPER, above, below
            if above == below:
                shape, ink = " ", NONE
            elif above == NONE:
                shape, ink, ground = LOWER, below, NONE
            style = _style(self.depth, self.is_diverging, ink, ground)
            pieces.append(Segment(shape * len(list(run)), style))
        return pieces

    def chosen(self, level: int) -> Segment:
        """The mark of what is chosen, two cells wide."""
        if self.depth == "none" or level == NONE:
            return Segment("[]", CHOSEN)
        color = _colors(self.depth, self.is_diverging)[level]
        contrast = Color.from_ansi(0 if level > LEVELS // 2 and not self.is_diverging else 15)
        return Segment("[]", Style(color=contrast, bgcolor=color, bold=True))
