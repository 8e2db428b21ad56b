"""Matrices as lines of a terminal: coloured blanks, half-blocks with two rows per line, or characters.

The escape sequences are written directly, and only where a colour changes.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from attncli.views.terminal.palettes import NONE, Palette

UPPER, LOWER, BLANK = "▀", "▄", " "
RAMP = " .:-=+*#%@"
NO_NUMBER = "·"
SHAPES = (UPPER, LOWER, NO_NUMBER)
RESET = "\x1b[0m"
SAME = NONE + 1  # No sequence: the colour is that of the cell before.


def _sequences(parameters: Sequence[str]) -> list[str]:
    """The escape sequence of each level, and an empty text for SAME."""
    return [*(f"\x1b[{one}m" for one in parameters), ""]


def _changes(levels: np.ndarray) -> np.ndarray:
    """The levels, SAME where the cell before in the row has the same one."""
    same = np.zeros(levels.shape, dtype=bool)
    same[:, 1:] = levels[:, 1:] == levels[:, :-1]
    return np.where(same, SAME, levels)


def cell_lines(levels: np.ndarray, palette: Palette, cell_width: int) -> list[str]:
    """One line per row, each cell `cell_width` characters in its colour; a dot for no number."""
    sequences = _sequences([parameters for parameters, _ in palette.fills])
    fills = [character * cell_width for _, character in palette.fills]
    fills[NONE] = NO_NUMBER.ljust(cell_width)
    changes = _changes(levels).tolist()
    return [_joined(sequences, fills, *row) + RESET for row in zip(changes, levels.tolist(), strict=True)]


def half_block_lines(levels: np.ndarray, palette: Palette) -> list[str]:
    """One line per two rows, one character per column: upper and lower half each in its own colour.

    No number is the terminal's own background, so the other half is drawn as the foreground; a dot where
    neither half has a number.
    """
    if len(levels) % 2:
        levels = np.vstack([levels, np.full(levels.shape[1], NONE)])
    upper, lower = levels[::2], levels[1::2]
    is_open = upper == NONE
    shapes = is_open + (is_open & (lower == NONE)).astype(int)
    inks, papers = _changes(np.where(is_open, lower, upper)), _changes(np.where(is_open, NONE, lower))
    foregrounds, backgrounds = _sequences(palette.foregrounds), _sequences(palette.backgrounds)
    # A background and the shape on it in one text: fewer pieces to join.
    cells = [background + shape for shape in SHAPES for background in backgrounds]
    places = (papers + shapes * len(backgrounds)).tolist()
    return [_joined(foregrounds, cells, *row) + RESET for row in zip(inks.tolist(), places, strict=True)]


def _joined(first: Sequence[str], second: Sequence[str], firsts: list[int], seconds: list[int]) -> str:
    """Texts of the two lists by turns, each by its index."""
    pairs = zip(map(first.__getitem__, firsts), map(second.__getitem__, seconds), strict=True)
    return "".join(chain.from_iterable(pairs))


def character_lines(places: np.ndarray, cell_width: int) -> list[str]:
    """One line per row, without colour: the mark for the tenth of the map that a place is in.

    A blank separates cells of more than two characters.
    """
    numbers = np.where(np.isnan(places), 0, places)
    tenths = np.minimum((numbers * len(RAMP)).astype(int), len(RAMP) - 1)
    marks = np.array(list(RAMP + NO_NUMBER))[np.where(np.isnan(places), len(RAMP), tenths)]
    cells = np.repeat(marks, cell_width, axis=1)
    if cell_width > 2:
        cells[:, cell_width - 1 :: cell_width] = BLANK
    return ["".join(row) for row in cells.tolist()]
