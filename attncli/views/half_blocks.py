"""Matrices as lines of a terminal: coloured blanks, half-blocks with two rows a line, or characters.

The escape sequences are written directly, and only where a colour changes.
"""

import numpy as np

from attncli.views.palettes import NONE, Palette

UPPER, LOWER = "▀", "▄"
RAMP = " .:-=+*#%@"
NO_NUMBER = "·"
RESET = "\x1b[0m"


def _runs(keys: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Where each run of equal keys begins, and how long it is."""
    starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
    return starts, np.diff(starts, append=len(keys)).tolist()


def cell_lines(levels: np.ndarray, palette: Palette, cell_width: int) -> list[str]:
    """A line a row: each cell is `cell_width` characters that fill it with its colour."""
    lines = []
    for row in levels:
        starts, lengths = _runs(row)
        pieces = []
        before = None
        for level, length in zip(row[starts].tolist(), lengths, strict=True):
            parameters, character = palette.fills[level]
            sequence = "" if parameters == before else f"\x1b[{parameters}m"
            pieces.append(sequence + character * (length * cell_width))
            before = parameters
        lines.append("".join(pieces) + RESET)
    return lines


def half_block_lines(levels: np.ndarray, palette: Palette) -> list[str]:
    """A line two rows, a character a column: the upper half in one colour, the lower half in the other."""
    if len(levels) % 2:
        levels = np.vstack([levels, np.full(levels.shape[1], NONE)])
    return [_half_block_line(*pair, palette) for pair in zip(levels[::2], levels[1::2], strict=True)]


def _half_block_line(upper: np.ndarray, lower: np.ndarray, palette: Palette) -> str:
    """Foreground and background of each run of equal pairs; no number is the terminal's own background."""
    foregrounds, backgrounds, _ = palette
    starts, lengths = _runs(upper * (NONE + 1) + lower)
    pieces = []
    ink = paper = NONE
    for above, below, length in zip(upper[starts].tolist(), lower[starts].tolist(), lengths, strict=True):
        if above == below:
            front, back, shape = ink, below, " "
        elif above == NONE:
            front, back, shape = below, NONE, LOWER
        else:
            front, back, shape = above, below, UPPER
        if front != ink and back != paper:
            pieces.append(f"\x1b[{foregrounds[front]};{backgrounds[back]}m{shape * length}")
        elif front != ink:
            pieces.append(f"\x1b[{foregrounds[front]}m{shape * length}")
        elif back != paper:
            pieces.append(f"\x1b[{backgrounds[back]}m{shape * length}")
        else:
            pieces.append(shape * length)
        ink, paper = front, back
    return "".join(pieces) + RESET


def character_lines(places: np.ndarray, cell_width: int) -> list[str]:
    """A line a row, without colour: the mark of the tenth of the map that a place is in.

    A blank parts cells of more than two characters.
    """
    numbers = np.where(np.isnan(places), 0, places)
    tenths = np.minimum((numbers * len(RAMP)).astype(int), len(RAMP) - 1)
    marks = np.array(list(RAMP + NO_NUMBER))[np.where(np.isnan(places), len(RAMP), tenths)]
    repeats, gap = (cell_width - 1, " ") if cell_width > 2 else (cell_width, "")
    return ["".join(mark * repeats + gap for mark in row) for row in marks.tolist()]
