"""A curve as a line of braille dots, eight to a character, between axes with numbers."""

from typing import NamedTuple

import numpy as np

from attncli.views.numbers import range_ends, scalar
from attncli.views.terminal.blocks import ScreenLine, beside, styled, text_line

ACROSS, DOWN = 2, 4
BRAILLE = 0x2800
# The bit of each dot of a braille character, row by row from the top.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
INK = "\x1b[36m"


class Ends(NamedTuple):
    """The least and the greatest number of an axis."""

    low: float
    high: float

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """From 0 at the low end to 1 at the high one; in the middle where the two are one."""
        span = self.high - self.low
        return (numbers - self.low) / span if span > 0 else np.full(len(numbers), 0.5)


def dotted_lines(x: np.ndarray, y: np.ndarray, columns: int, rows: int) -> list[str]:
    """The polyline through points with places from 0 to 1, in that many characters."""
    grid = np.zeros((rows * DOWN, columns * ACROSS), dtype=bool)
    size = max(grid.shape)
    along, up = x * (grid.shape[1] - 1), y * (grid.shape[0] - 1)
    # Steps of less than a dot between each point and the next.
    parts = np.concatenate([np.linspace(i, i + 1, 2 * size) for i in range(len(x) - 1)] or [np.zeros(1)])
    positions = np.arange(len(x))
    dots_along = np.rint(np.interp(parts, positions, along)).astype(int)
    dots_up = np.rint(np.interp(parts, positions, up)).astype(int)
    grid[grid.shape[0] - 1 - dots_up, dots_along] = True
    cells = grid.reshape(rows, DOWN, columns, ACROSS).transpose(0, 2, 1, 3)
    codes = BRAILLE + (cells * DOTS).sum(axis=(2, 3))
    return ["".join(chr(code) if code > BRAILLE else " " for code in row) for row in codes.tolist()]


def chart(
    x: np.ndarray, y: np.ndarray, ends: Ends, *, columns: int, rows: int, precision: int, has_color: bool
) -> list[ScreenLine]:
    """The curve between its axes; `ends` are those of y, so that charts can share them."""
    across = Ends(float(x.min()), float(x.max()))
    lines = dotted_lines(across.places(x), ends.places(y), columns, rows)
    labels = [""] * rows
    labels[-1], labels[0] = range_ends(*ends, precision)
    if rows % 2:
        labels[rows // 2] = scalar((ends.low + ends.high) / 2, precision)
    width = max(map(len, labels))
    axis = [text_line(f"{label:>{width}} {'┤' if label else '│'}") for label in labels]
    curve = [styled(text_line(line), INK, has_color) for line in lines]
    left, right = (np.format_float_positional(end, 4, trim="-") for end in across)
    middle = " " * max(1, columns - len(left) - len(right))
    return [
        *beside([axis, curve], 0),
        text_line(f"{'':>{width}} └{'─' * columns}"),
        text_line(f"{'':>{width}}  {left}{middle}{right}"),
    ]
