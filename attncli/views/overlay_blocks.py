"""Overlays on a canvas: a single look, the looks of many heads, and pictures with their maps."""

from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.cells import cell_len

from attncli.records.report import Box, PictureMaps, PictureRow
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.arrangement import Rigid
from attncli.views.canvas import (
    BAR_GAP,
    BAR_LABELS,
    BAR_WIDTH,
    CHARACTER,
    DOTS_PER_INCH,
    LABEL_HEIGHT,
    LONGEST_LABEL,
    TITLE_CHARACTER,
    TITLE_HEIGHT,
    axes_at,
    draw_bar,
    longest,
)
from attncli.views.overlays import (
    ROLLOUT,
    Look,
    LookTile,
    Overlays,
    in_colour,
    kind_of,
    painted,
    parts_of,
    png_size,
    shaded,
)
from attncli.views.picture_maps import ORIGINAL, left_out, row_name, tiles_of, title_of
from attncli.views.texts import shortened, weight_text, wrap_cells

# The longer side of a single look, of each of a few, and of each of many.
SINGLE, FEW, TILE, MOST_FEW = 4.2, 2.0, 1.1, 16
OUTSIDE_WIDTH, OUTSIDE_NUMBER, MOST_OUTSIDE = 1.9, 1.1, 12
MOST_ACROSS = 16
# A strip, such as anything that lies in time: its least aspect ratio, its drawn aspect ratio, inches per row.
STRIP, WIDER, STRIPS_ACROSS = 4, 2.5, 16
LEAST_CAPTION = 12
"""The characters that every caption has room for, even over a narrow picture: `17:13 95%`, `rollout 8%`."""


def with_original(groups: Sequence[Sequence[LookTile]]) -> list[list[LookTile]]:
    """Put the plain picture first: in the row of the only group, or else in a group with the rollout."""
    first = [LookTile(kind_of(groups[0][0].look.picture), groups[0][0].look, is_picture=True)]
    if len(groups) == 1:
        return [[*first, *groups[0]]]
    *others, last = groups
    rollout = [tile for tile in last if tile.name == ROLLOUT]
    return [[*first, *rollout], *map(list, others), [tile for tile in last if tile.name != ROLLOUT]]


class OverlayBlock(Rigid):
    """One look over its picture with the outside tokens beside it, or a small picture for each look."""

    def __init__(self, overlays: Overlays, display: Display) -> None:
        self.scale, self.precision = display.scale_colors, display.screen_precision
        tiles = [tile for group in overlays.groups for tile in group]
        self.is_single = len(tiles) == 1
        self.title = tiles[0].look.title if self.is_single else overlays.title
        across = SINGLE if self.is_single else FEW if len(tiles) <= MOST_FEW else TILE
        width, height = png_size(overlays.picture)
        is_strip = width > STRIP * height
        across *= WIDER if is_strip else 1
        self.longest_caption = None if is_strip else LONGEST_LABEL
        most = round(STRIPS_ACROSS / across) if is_strip else MOST_ACROSS
        self.rows = [
            group[start : start + most]
            for group in with_original(overlays.groups)
            for start in range(0, len(group), most)
        ]
        scale = across / max(width, height)
        self.size = width * scale, height * scale
        dots = min(1.0, 2 * DOTS_PER_INCH * scale)
        self.pixels = round(width * dots), round(height * dots)
        self.gap = 0.08
        self.across = self.size[0] if self.is_single else max(self.size[0], LEAST_CAPTION * CHARACTER)
        self.caption = 0.0 if self.is_single else TITLE_HEIGHT
        in_row = max(map(len, self.rows)) * (self.across + self.gap) - self.gap
        self.width = max(
            in_row + (OUTSIDE_WIDTH + BAR_LABELS if self.is_single else 0),
            TITLE_CHARACTER * cell_len(self.title),
        )
        self.height = TITLE_HEIGHT + len(self.rows) * (self.size[1] + self.caption + self.gap)

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the title and the pictures, each under its own caption."""
        total_width, total_height = figure.get_size_inches()
        figure.text(left / total_width, 1 - top / total_height, self.title, va="top", fontsize=8)
        width, height = self.size
        longest_caption = round(self.across / CHARACTER)
        longest_caption = min(self.longest_caption or longest_caption, longest_caption)
        for row, tiles in enumerate(self.rows):
            y = top + TITLE_HEIGHT + row * (height + self.caption + self.gap) + self.caption
            for column, tile in enumerate(tiles):
                axes = axes_at(figure, left + column * (self.across + self.gap), y, width, height)
                draw_tile(axes, tile, self.pixels, self.scale)
                if not self.is_single:
                    name = tile.name if tile.is_picture else tile.caption
                    axes.set_title(shortened(name, longest_caption), loc="left", pad=2, fontsize=7)
        if self.is_single:
            left += width + self.gap
            place = (left + width + BAR_GAP, top + TITLE_HEIGHT, BAR_WIDTH, height)
            draw_bar(figure, shaded(tiles[-1].look, *self.pixels, self.scale), "weight", place)
            x = left + width + BAR_GAP + BAR_WIDTH + BAR_LABELS
            pairs = list(self._weights(tiles[-1].look))
            for texts, right in zip(zip(*pairs, strict=True), (0, OUTSIDE_NUMBER), strict=True):
                corner = (x + right) / total_width, 1 - (top + TITLE_HEIGHT) / total_height
                figure.text(*corner, "\n".join(texts), va="top", fontsize=7)

    def _weights(self, look: Look) -> Iterator[tuple[str, str]]:
        """List the parts with the largest weights and the tokens outside the picture."""
        total = sum(weight for _, weight in look.outside)
        parts = {(f"strongest {parts_of(look.picture)}", ""): look.strongest}
        if look.outside:
            parts |= {("", ""): [], ("outside", weight_text(total, self.precision)): look.outside}
        for heading, weights in parts.items():
            yield heading
            for name, weight in weights[:MOST_OUTSIDE]:
                yield f"  {shortened(name, LONGEST_LABEL)}", weight_text(weight, self.precision)


def draw_tile(axes: Axes, tile: LookTile, pixels: tuple[int, int], scale: str | None) -> None:
    """Draw the plain picture, or the picture with the weights over it, at that many pixels."""
    look = tile.look
    image = (
        in_colour(look.picture, *pixels)
        if tile.is_picture
        else painted(look.picture, shaded(look, *pixels, scale))
    )
    axes.imshow(image, aspect="auto", interpolation="antialiased")
    axes.set_axis_off()
    draw_frame(axes, look.query_box, pixels)


def draw_frame(axes: Axes, box: Box | None, pixels: tuple[int, int]) -> None:
    """Frame the query's patch, light on dark, so that it stands out on any picture."""
    if box is None:
        return
    (left, right), (top, bottom) = (
        [share * side - 0.5 for share in box[i::2]] for i, side in enumerate(pixels)
    )
    for colour, width in (("black", 2.0), ("white", 1.0)):
        axes.add_patch(
            Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour, linewidth=width)
        )


# The longer side of a picture in a row, with few maps and with many, and its maximum height per width.
ROW_FEW, ROW_MANY, MOST_ROW_FEW, TALLEST = 1.7, 1.15, 5, 1.5
NAME_SIZE, NAME_CELLS, MOST_NAME_LINES = 7, 22, 4


class PictureMapsBlock(Rigid):
    """One row per picture: its file name, the plain picture, and its maps under their names."""

    def __init__(self, maps: PictureMaps, display: Display) -> None:
        self.maps, self.scale = maps, display.scale_colors
        self.title, self.left_out = title_of(maps), left_out(maps)
        self.across = ROW_FEW if len(maps.names) <= MOST_ROW_FEW else ROW_MANY
        self.gap = 0.08
        names = [wrap_cells(row_name(row), NAME_CELLS) for row in maps.rows]
        self.names = [_first_of(lines, MOST_NAME_LINES) for lines in names]
        self.label = longest([line for lines in self.names for line in lines])
        self.sizes = [self._size(row) for row in maps.rows]
        in_row = self.label + (1 + len(maps.names)) * (self.across + self.gap) - self.gap
        self.width = max(in_row, TITLE_CHARACTER * cell_len(self.title))
        heights = (max(height, len(lines) * LABEL_HEIGHT) for (_, height), lines in self._rows())
        self.above = 2 * TITLE_HEIGHT
        below = TITLE_HEIGHT if self.left_out else 0.0
        self.height = self.above + sum(height + self.gap for height in heights) + below

    def _rows(self) -> Iterator[tuple[tuple[float, float], list[str]]]:
        """Return the size of each picture and the lines of its name."""
        return zip(self.sizes, self.names, strict=True)

    def _size(self, row: PictureRow) -> tuple[float, float]:
        """Return a picture's size in inches, with its aspect ratio preserved."""
        width, height = png_size(row.picture)
        scale = min(self.across / width, TALLEST * self.across / height)
        return width * scale, height * scale

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the title, the column names once, the rows, and the number of pictures left out."""
        total_width, total_height = figure.get_size_inches()

        def write(text: str, x: float, y: float, size: float) -> None:
            figure.text(x / total_width, 1 - y / total_height, text, va="top", fontsize=size)

        write(self.title, left, top, 8)
        x = left + self.label
        for column, name in enumerate((ORIGINAL, *map(plain_text, self.maps.names))):
            write(name, x + column * (self.across + self.gap), top + TITLE_HEIGHT + 0.05, NAME_SIZE)
        y = top + self.above
        for row, ((width, height), lines) in zip(self.maps.rows, self._rows(), strict=True):
            write("\n".join(lines), left, y, NAME_SIZE)
            pixels = _pixels(row, width)
            for column, tile in enumerate(tiles_of(self.maps, row)):
                place = x + column * (self.across + self.gap)
                draw_tile(axes_at(figure, place, y, width, height), tile, pixels, self.scale)
            y += max(height, len(lines) * LABEL_HEIGHT) + self.gap
        write(self.left_out, left, y, NAME_SIZE)


def _pixels(row: PictureRow, width: float) -> tuple[int, int]:
    """Return the width and height in pixels of a picture given in inches, at the visible resolution."""
    sides = png_size(row.picture)
    dots = min(1.0, 2 * DOTS_PER_INCH * width / sides[0])
    return max(1, round(sides[0] * dots)), max(1, round(sides[1] * dots))


def _first_of(lines: list[str], most: int) -> list[str]:
    """Return all lines, or the first lines that fit, with the last one cut."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shortened("".join(lines[most - 1 :]), NAME_CELLS)]
