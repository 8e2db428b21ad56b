"""Weights over pictures as lines of a terminal: half-blocks in mixed colours, characters without colour."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import overload

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import Picture, Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.colours import levels, palette, picture_palette
from attncli.views.matrices import in_words
from attncli.views.overlays import Look, Tile, Tiles, grey, layers_of, looks_of, painted, shaded, size_of
from attncli.views.terminal import RAMP, character_lines, half_block_lines
from attncli.views.texts import (
    BOLD,
    ScreenLine,
    beside,
    counted,
    joined,
    range_ends,
    shortened,
    styled,
    text_line,
    weight_text,
)

Size = tuple[int, int]
"""Columns and lines."""
GAP = 2
LINES, MOST_LINES = 14, 40
LIST_WIDTH, NAME_WIDTH = 22, 12
MOST_OUTSIDE = 3
BAR_CELLS = 10
RANGE_SIZE = 64, 64
# Columns of a small overlay, the largest that fit.
TILES = (24, 20, 16, 14, 12, 10, 9, 8)


def fitted_size(picture: Picture, columns: int, lines: int) -> Size:
    """The columns and lines in which a picture keeps its shape: a line is two columns high."""
    width, height = size_of(picture)
    lines = max(1, min(lines, round(columns * height / width / 2)))
    return max(1, min(columns, round(2 * lines * width / height))), lines


def overlay_lines(look: Look, size: Size, display: Display) -> list[ScreenLine]:
    """The picture with the weights above it; of 16 colours or none the weights alone."""
    columns, lines = size
    shade = shaded(look, columns, lines * (2 if display.has_color else 1), display.scale_colors)
    if not display.has_color:
        texts = character_lines(shade.places, 1)
    elif display.colors == "16":
        texts = half_block_lines(levels(shade.places), palette("16", shade.is_diverging))
    else:
        texts = half_block_lines(*picture_palette(painted(look.picture, shade), display.colors))
    return [ScreenLine(text, columns) for text in texts]


def lines_with_list(look: Look, display: Display, most_lines: int) -> list[ScreenLine]:
    """The overlay in at most so many lines, beside it the strongest patches and what lies elsewhere."""
    room = (display.width or TEXT_WIDTH) - LIST_WIDTH - GAP
    size = fitted_size(look.picture, room if display.has_color else room // 2 - GAP, most_lines)
    blocks = [overlay_lines(look, size, display)]
    if not display.has_color:
        blocks.append(_picture_lines(look.picture, size))
    return beside([*blocks, _list(look, display, size[1])], GAP)


def _picture_lines(picture: Picture, size: Size) -> list[ScreenLine]:
    """The picture without weights in characters, the light places as the largest."""
    return [ScreenLine(text, size[0]) for text in character_lines(grey(picture, *size) / 255, 1)]


def with_picture(groups: Tiles, display: Display) -> Tiles:
    """Without colour the picture stands before the last group, as nothing is seen through characters."""
    if display.has_color:
        return groups
    *others, last = groups
    return [*others, [Tile("picture", last[0].look, is_picture=True), *last]]


def _list(look: Look, display: Display, lines: int) -> list[ScreenLine]:
    """The range of the colours, the strongest patches, and what lies outside of the picture."""
    outside = look.outside
    shown = outside if len(outside) <= MOST_OUTSIDE else outside[: MOST_OUTSIDE - 1]
    rest = outside[len(shown) :]
    total = float(np.nansum([weight for _, weight in outside]))
    below = [styled(f"outside {weight_text(total, display.precision)}", BOLD, display.has_color)]
    below += [_weight_line(*pair, display) for pair in shown]
    if rest:
        below.append(
            _weight_line(counted(len(rest), "other"), float(np.nansum([w for _, w in rest])), display)
        )
    if not outside or lines < len(below) + 3:
        below = below[:1] if outside and lines > 2 else []
    above = [_range(look, display), styled("strongest patches", BOLD, display.has_color)]
    count = max(0, lines - len(above) - len(below))
    return [*above, *(_weight_line(*pair, display) for pair in look.strongest[:count]), *below][:lines]


def _weight_line(name: str, weight: float, display: Display) -> ScreenLine:
    return text_line(
        f"  {shortened(name, NAME_WIDTH):<{NAME_WIDTH}} {weight_text(weight, display.precision)}"
    )


def _range(look: Look, display: Display) -> ScreenLine:
    """`0 [bar] 0.08`."""
    shade = shaded(look, *RANGE_SIZE, display.scale_colors)
    if np.isnan(shade.low):
        return text_line("no numbers")
    low, high = range_ends(shade.low, shade.high, 3, shade.scale)
    if not display.has_color:
        bar = text_line(f"[{RAMP}]")
    else:
        places = np.linspace(0, 1, BAR_CELLS)[np.newaxis].repeat(2, axis=0)
        (text,) = half_block_lines(levels(places), palette(display.colors, shade.is_diverging))
        bar = ScreenLine(text, BAR_CELLS)
    return joined([text_line(f"{'0' if float(low) == 0 else low} "), bar, text_line(f" {high}")])


class TileLines(Sequence[str]):
    """Lines of tiles, drawn when they are read: how many there are is known before."""

    def __init__(self, groups: Tiles, columns: int, display: Display) -> None:
        self.rows = rows_of(groups, columns, display)
        self.columns, self.display = columns, display
        self.size = fitted_size(groups[0][0].look.picture, columns, MOST_LINES)

    def __len__(self) -> int:
        return len(self.rows) * (1 + self.size[1])

    @cached_property
    def _drawn(self) -> list[str]:
        return [line.text.rstrip() for row in self.rows for line in beside([*map(self._block, row)], 1)]

    def _block(self, tile: Tile) -> list[ScreenLine]:
        """Its name, or its caption where there is room, and the overlay, all lines as wide as a tile."""
        across, picture = self.columns, tile.look.picture
        if tile.is_picture:
            name, drawn = tile.name, _picture_lines(picture, self.size)
        else:
            name = tile.caption_in(across)
            drawn = overlay_lines(tile.look, self.size, self.display)
        lines = [text_line(shortened(name, across)), *drawn]
        return [ScreenLine(line.text + " " * (across - line.cells), across) for line in lines]

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._drawn[place]


def rows_of(groups: Tiles, columns: int, display: Display) -> list[list[Tile]]:
    """The tiles from left to right: each group begins a row, or stands beside others that fit whole."""
    across = max(1, ((display.width or TEXT_WIDTH) + 1) // (columns + 1))
    each = max(1, across // max(map(len, groups)))
    rows: list[list[Tile]] = []
    for start in range(0, len(groups), each):
        tiles = [tile for group in groups[start : start + each] for tile in group]
        in_row = -(-len(tiles) // -(-len(tiles) // across))  # of one group, as even as can be
        rows += [tiles[i : i + in_row] for i in range(0, len(tiles), in_row)]
    return rows


def whole_lines(report: Report, name: str, display: Display) -> Iterator[tuple[str, Sequence[str]]]:
    """A title and lines for each picture, with all looks of a tensor: one large, several as tiles."""
    for picture, found in groupby(looks_of(report, name), key=lambda look: look.picture):
        looks = list(found)
        if len(looks) == 1:
            lines = lines_with_list(looks[0], display, LINES)
            yield (looks[0].title, [line.text.rstrip() for line in lines])
            continue
        by_layer = with_picture(layers_of(looks), display)
        columns = next((each for each in TILES if len(rows_of(by_layer[-1:], each, display)) == 1), TILES[-1])
        title = (
            f"{in_words(name).replace('_', ' ')}: where {looks[0].query} looks in {plain_text(picture.name)}"
        )
        yield (title, TileLines(by_layer, columns, display))
