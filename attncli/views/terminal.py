"""Pictures in a terminal: maps made of half-blocks or characters, and curves made of braille dots."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from attncli.records.report import Report
from attncli.views import Display
from attncli.views.colours import NONE, Palette, levels, palette
from attncli.views.matrices import Curve, report_curves
from attncli.views.texts import (
    BOLD,
    NO_CELL,
    RESET,
    ScreenLine,
    beside,
    joined,
    plain_line,
    range_ends,
    scalar,
    styled,
)

UPPER, LOWER, BLANK = "▀", "▄", " "
RAMP = " .:-=+*#%@"
SHAPES = (UPPER, LOWER, NO_CELL)


def _sequences(parameters: Sequence[str]) -> list[str]:
    """Return the escape sequence of each level, and an empty string for an unchanged colour."""
    return [*(f"\x1b[{parameter}m" for parameter in parameters), ""]


def _changes(levels: np.ndarray, palette: Palette) -> np.ndarray:
    """Return the levels; cells equal to their left neighbour get the level after the palette's last."""
    same = np.zeros(levels.shape, dtype=bool)
    same[:, 1:] = levels[:, 1:] == levels[:, :-1]
    return np.where(same, len(palette.backgrounds), levels)


def cell_texts(palette: Palette, cell_width: int) -> list[str]:
    """Return the characters of a cell at each level, with a stroke for missing numbers."""
    texts = [character * cell_width for _, character in palette.fills]
    texts[NONE] = NO_CELL.ljust(cell_width)
    return texts


def cell_lines(levels: np.ndarray, palette: Palette, cell_width: int) -> list[str]:
    """Return one line per row, with cells of `cell_width` characters in their colours."""
    sequences = _sequences([parameters for parameters, _ in palette.fills])
    fills = cell_texts(palette, cell_width)
    changes = _changes(levels, palette).tolist()
    return [_joined(sequences, fills, *row) + RESET for row in zip(changes, levels.tolist(), strict=True)]


def half_blocks(levels: np.ndarray, none: int = NONE) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one line per two rows, one character per column: its index in SHAPES, its ink and its paper.

    Missing numbers have the level `none`, the terminal's background, so the other half is drawn as the
    foreground; if both halves are missing, the character is a stroke.
    """
    if len(levels) % 2:
        levels = np.vstack([levels, np.full(levels.shape[1], none)])
    upper, lower = levels[::2], levels[1::2]
    is_open = upper == none
    shapes = is_open + (is_open & (lower == none)).astype(int)
    return shapes, np.where(is_open, lower, upper), np.where(is_open, none, lower)


def half_block_lines(levels: np.ndarray, palette: Palette) -> list[str]:
    """Return lines of half-blocks, with each upper and lower half in its own colour."""
    shapes, *colours = half_blocks(levels, len(palette.foregrounds) - 1)
    inks, papers = (_changes(each, palette) for each in colours)
    foregrounds, backgrounds = _sequences(palette.foregrounds), _sequences(palette.backgrounds)
    # The background and the shape on it form one string, so that there are fewer pieces to join.
    cells = [background + shape for shape in SHAPES for background in backgrounds]
    places = (papers + shapes * len(backgrounds)).tolist()
    return [_joined(foregrounds, cells, *row) + RESET for row in zip(inks.tolist(), places, strict=True)]


def _joined(first: Sequence[str], second: Sequence[str], firsts: list[int], seconds: list[int]) -> str:
    """Join strings from the two lists alternately, each by its index."""
    pairs = zip(map(first.__getitem__, firsts), map(second.__getitem__, seconds), strict=True)
    return "".join(chain.from_iterable(pairs))


def character_lines(places: np.ndarray, cell_width: int) -> list[str]:
    """Return one line per row without colour, with a character for the tenth of the map at each position.

    A space separates cells of more than two characters.
    """
    numbers = np.where(np.isnan(places), 0, places)
    tenths = np.minimum((numbers * len(RAMP)).astype(int), len(RAMP) - 1)
    marks = np.array(list(RAMP + NO_CELL))[np.where(np.isnan(places), len(RAMP), tenths)]
    cells = np.repeat(marks, cell_width, axis=1)
    if cell_width > 2:
        cells[:, cell_width - 1 :: cell_width] = BLANK
    return ["".join(row) for row in cells.tolist()]


def map_lines(
    places: np.ndarray, display: Display, *, is_diverging: bool, cell_width: int = 1, rows_per_line: int = 1
) -> list[ScreenLine]:
    """Return a map in its colours, with cells of that many characters or with two rows per line."""
    if not display.has_color:
        texts = character_lines(places, cell_width)
    elif rows_per_line == 2:
        texts = half_block_lines(levels(places), palette(display.colors, is_diverging))
    else:
        texts = cell_lines(levels(places), palette(display.colors, is_diverging), cell_width)
    return [ScreenLine(text, places.shape[1] * cell_width) for text in texts]


def colour_bar(
    ends: tuple[str, str], cells: int, display: Display, *, is_diverging: bool, rows_per_line: int
) -> ScreenLine:
    """Return a line like `0.0000 [bar] 1.0000`, with the whole colour map drawn like the cells of a map."""
    if display.has_color:
        places = np.linspace(0, 1, cells)[np.newaxis].repeat(rows_per_line, axis=0)
        (bar,) = map_lines(places, display, is_diverging=is_diverging, rows_per_line=rows_per_line)
    else:
        bar = plain_line(f"[{RAMP}]")
    return joined([plain_line(f"{ends[0]} "), bar, plain_line(f" {ends[1]}")])


ACROSS, DOWN = 2, 4
BRAILLE = 0x2800
# The bit of each dot in a braille character, row by row from the top.
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
INK = "\x1b[36m"
ROWS, SMALL_ROWS = 11, 7
MOST_COLUMNS = 100
LABEL_CELLS = 13  # The width of the numbers beside an axis, and of the axis.
SMALL_COLUMNS = 14, 30
GAP = 2


class AxisRange(NamedTuple):
    """The smallest and the largest number on an axis."""

    low: float
    high: float

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Return positions from 0 at the low end to 1 at the high end, or 0.5 if the ends are equal."""
        span = self.high - self.low
        return (numbers - self.low) / span if span > 0 else np.full(len(numbers), 0.5)


def axis_range(numbers: np.ndarray) -> AxisRange:
    """Return the smallest and the largest number, ignoring NaN."""
    return AxisRange(float(np.nanmin(numbers)), float(np.nanmax(numbers)))


def curve_lines(report: Report, display: Display) -> Iterator[list[ScreenLine]]:
    """Return a line chart for each curve; charts of a table's rows are side by side and share a y axis."""
    for group in report_curves(report):
        title = styled(group.title, BOLD, display.has_color)
        if group.is_of_rows:
            yield [title, *_small_charts(group.curves, display)]
        else:
            (curve,) = group.curves
            columns = min(display.width or MOST_COLUMNS, MOST_COLUMNS) - LABEL_CELLS
            yield [title, *chart(curve, axis_range(curve.y), columns, ROWS, display)]


def _small_charts(curves: list[Curve], display: Display) -> list[ScreenLine]:
    numbers = np.concatenate([curve.y for curve in curves])
    ends = AxisRange(min(0.0, float(numbers.min())), float(numbers.max()))
    least, columns = SMALL_COLUMNS
    if display.width is not None:
        columns = max(least, min(columns, (display.width + GAP) // len(curves) - GAP - LABEL_CELLS))
    charts = [
        [plain_line(curve.label), *chart(curve, ends, columns, SMALL_ROWS, display)] for curve in curves
    ]
    lines: list[ScreenLine] = []
    while charts:
        across = _fitting(charts, display.width)
        lines += beside(charts[:across], GAP)
        charts = charts[across:]
    return lines


def _fitting(charts: list[list[ScreenLine]], width: int | None) -> int:
    """Return the number of charts that fit side by side, which is at least one."""
    used, across = 0, 0
    for lines in charts:
        used += max(line.cells for line in lines) + (GAP if across else 0)
        if width is not None and used > width and across:
            break
        across += 1
    return across


def chart(curve: Curve, ends: AxisRange, columns: int, rows: int, display: Display) -> list[ScreenLine]:
    """Draw the curve between its axes; `ends` are the ends of the y axis, so that charts can share them."""
    across = axis_range(curve.x)
    lines = dotted_lines(across.places(curve.x), ends.places(curve.y), columns, rows)
    labels = [""] * rows
    labels[-1], labels[0] = range_ends(*ends, display.precision)
    if rows % 2:
        labels[rows // 2] = scalar((ends.low + ends.high) / 2, display.precision)
    width = max(map(len, labels))
    axis = [plain_line(f"{label:>{width}} {'┤' if label else '│'}") for label in labels]
    dots = [styled(line, INK, display.has_color) for line in lines]
    left, right = (np.format_float_positional(end, 4, trim="-") for end in across)
    middle = " " * max(1, columns - len(left) - len(right))
    return [
        *beside([axis, dots], 0),
        plain_line(f"{'':>{width}} └{'─' * columns}"),
        plain_line(f"{'':>{width}}  {left}{middle}{right}"),
    ]


def dotted_lines(x: np.ndarray, y: np.ndarray, columns: int, rows: int) -> list[str]:
    """Draw a polyline through points whose positions are from 0 to 1, in that many characters.

    The line is interrupted at points whose position is NaN.
    """
    grid = np.zeros((rows * DOWN, columns * ACROSS), dtype=bool)
    size = max(grid.shape)
    along, up = x * (grid.shape[1] - 1), y * (grid.shape[0] - 1)
    # Steps of less than one dot between each point and the next.
    parts = np.concatenate([np.linspace(i, i + 1, 2 * size) for i in range(len(x) - 1)] or [np.zeros(1)])
    positions = np.arange(len(x))
    lines = np.stack([np.interp(parts, positions, places) for places in (along, up)])
    places = np.concatenate([lines, [along, up]], axis=1)  # the points, too, because some stand alone
    dots_along, dots_up = np.rint(places[:, np.isfinite(places).all(axis=0)]).astype(int)
    grid[grid.shape[0] - 1 - dots_up, dots_along] = True
    cells = grid.reshape(rows, DOWN, columns, ACROSS).transpose(0, 2, 1, 3)
    codes = BRAILLE + (cells * DOTS).sum(axis=(2, 3))
    return ["".join(chr(code) if code > BRAILLE else " " for code in row) for row in codes.tolist()]
