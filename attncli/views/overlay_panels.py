"""Overlays in figures: a single look, the looks of many heads, and pictures with their maps."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from attncli.records.report import Box, Picture, PictureMaps, PictureRow
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.canvas import (
    BAR_SPACE,
    DOTS_PER_INCH,
    LABEL_SIZE,
    LINE,
    NAME_SIZE,
    SINGLE,
    axes_at,
    draw_bar,
    shortened_to,
    text_width,
    widest,
    write,
)
from attncli.views.colours import Shading
from attncli.views.overlays import (
    ROLLOUT,
    LookTile,
    Overlays,
    about_picture,
    in_colour,
    kind_of,
    painted,
    parts_of,
    png_size,
    shaded,
)
from attncli.views.panels import AXIS_NAME, TICK
from attncli.views.picture_maps import ORIGINAL, left_out, row_name, tiles_of, title_of
from attncli.views.texts import shortened, weight_text, wrap_cells

GAP, CAPTION = 0.06, LABEL_SIZE * LINE
TALLEST = 1.15
"""The greatest height of a picture as a share of the width of the panel."""
STRIP = 4
"""The least aspect ratio of a picture whose looks stand below each other, as anything that lies in time."""
MOST_ACROSS, MOST_STRIPS, MOST_FEW = 12, 2, 16
LEAST_CAPTION = "17:13 95%"
"""The caption that fits over any picture."""
MOST_LISTED = 6
OWN_RANGE = "weight, each map from 0 to its own largest"


def with_original(groups: Sequence[Sequence[LookTile]]) -> list[list[LookTile]]:
    """Put the plain picture first: in the row of the only group, or else in a group with the rollout."""
    first = [LookTile(kind_of(groups[0][0].look.picture), groups[0][0].look, is_picture=True)]
    if len(groups) == 1:
        return [[*first, *groups[0]]]
    *others, last = groups
    rollout = [tile for tile in last if tile.name == ROLLOUT]
    return [[*first, *rollout], *map(list, others), [tile for tile in last if tile.name != ROLLOUT]]


def common_range(shades: Sequence[Shading]) -> Shading:
    """Return a range from 0 to `largest` for a bar of maps that each have their own range."""
    is_diverging = any(each.is_diverging for each in shades)
    return Shading(np.zeros((1, 1)), -1.0 if is_diverging else 0.0, 1.0, is_diverging, "row")


class OverlayPanel:
    """One look over its picture, large and with axes, or a small picture for each of several looks."""

    def __init__(self, overlays: Overlays, display: Display) -> None:
        self.scale, self.precision = display.scale_colors, display.screen_precision
        self.picture = overlays.picture
        tiles = [tile for group in overlays.groups for tile in group]
        self.single = tiles[0].look if len(tiles) == 1 else None
        self.title = overlays.title if self.single is None else self.single.title
        width, height = png_size(overlays.picture)
        self.shape = height / width
        self.is_strip = width > STRIP * height
        most = MOST_STRIPS if self.is_strip else MOST_ACROSS if len(tiles) > MOST_FEW else 4
        self.rows = [
            group[start : start + most]
            for group in with_original(overlays.groups)
            for start in range(0, len(group), most)
        ]
        self.fits_single = self.single is not None or (len(tiles) <= MOST_FEW and not self.is_strip)
        self.legend = f"{self.title}. {about_picture(self.picture)}. {self._numbers()}"

    def _numbers(self) -> str:
        """Return a sentence about the colours and, for a single look, the largest weights."""
        if self.single is None:
            return f"Colour: {OWN_RANGE}; a caption has the share of the weight on the picture."
        pairs = {
            f"Strongest {parts_of(self.picture)}": self.single.strongest,
            "Outside": self.single.outside,
        }
        lists = (
            f"{heading}: "
            + ", ".join(
                f"{name} {weight_text(weight, self.precision)}" for name, weight in weights[:MOST_LISTED]
            )
            for heading, weights in pairs.items()
            if weights
        )
        return "Colour: attention weight. " + "; ".join(lists) + "."

    def _tile(self, width: float) -> tuple[float, float, float]:
        """Return the width of a column, and the size of a picture in it."""
        if self.single is not None:
            across = min(width - AXIS_NAME - widest(["0000"]) - 2 * TICK, TALLEST * width / self.shape)
            return across, across, across * self.shape
        column = (width + GAP) / max(map(len, self.rows)) - GAP
        across = min(column, TALLEST * column / self.shape)
        return max(column, text_width(LEAST_CAPTION)), across, across * self.shape

    def height(self, width: float) -> float:
        """Return the height of the bar, the pictures and their captions or axes."""
        _, _, down = self._tile(width)
        if self.single is not None:
            return BAR_SPACE + down + TICK + CAPTION + AXIS_NAME
        axis = TICK + CAPTION + AXIS_NAME if self.picture.seconds is not None else 0.0
        return BAR_SPACE + len(self.rows) * (CAPTION + down + GAP) - GAP + axis

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the colour bar and the pictures."""
        column, across, down = self._tile(width)
        pixels = pixels_in(self.picture, across)
        if self.single is not None:
            left += AXIS_NAME + widest(["0000"]) + TICK
            shades = shaded(self.single, *pixels, self.scale)
            draw_bar(figure, shades, "attention weight", (left, top), across)
            axes = axes_at(figure, left, top + BAR_SPACE, across, down)
            draw_tile(axes, LookTile("", self.single), pixels, self.scale)
            draw_axes(axes, self.picture, across)
            if self.picture.seconds is not None:
                axes.set_ylabel("frequency →", fontsize=NAME_SIZE)
            return
        shades = common_range([shaded(tile.look, 8, 8, self.scale) for tile in self.rows[-1]])
        draw_bar(figure, shades, OWN_RANGE, (left, top), min(width, SINGLE))
        for row, tiles in enumerate(self.rows):
            y = top + BAR_SPACE + row * (CAPTION + down + GAP) + CAPTION
            for place, tile in enumerate(tiles):
                x = left + place * (column + GAP)
                name = shortened_to(tile.name if tile.is_picture else tile.caption, column)
                write(figure, name, x, y - 0.015, LABEL_SIZE, va="bottom")
                axes = axes_at(figure, x, y, across, down)
                draw_tile(axes, tile, pixels, self.scale)
                lower = self.rows[row + 1 :]
                if self.picture.seconds is not None and not any(len(tiles) > place for tiles in lower):
                    draw_axes(axes, self.picture, across)


def pixels_in(picture: Picture, width: float) -> tuple[int, int]:
    """Return the width and height in pixels of a picture given in inches, at the visible resolution."""
    sides = png_size(picture)
    dots = min(1.0, 2 * DOTS_PER_INCH * width / sides[0])
    return max(1, round(sides[0] * dots)), max(1, round(sides[1] * dots))


def draw_tile(axes: Axes, tile: LookTile, pixels: tuple[int, int], scale: str | None) -> None:
    """Draw the plain picture, or the picture with the weights over it, at that many pixels."""
    look = tile.look
    image = (
        in_colour(look.picture, *pixels)
        if tile.is_picture
        else painted(look.picture, shaded(look, *pixels, scale))
    )
    axes.imshow(image, aspect="auto", interpolation="antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    draw_frame(axes, look.query_box, pixels)


def draw_axes(axes: Axes, picture: Picture, across: float) -> None:
    """Number the sides: the seconds of a sound, or the pixels of the file, from its upper left corner."""
    left, top, right, bottom = picture.crop
    pixels_across, pixels_down = (abs(one - other) for one, other in (axes.get_xlim(), axes.get_ylim()))
    is_sound = picture.seconds is not None
    ends = (0.0, picture.seconds or 0.0) if is_sound else (left, right)
    for axis, pixels, (first, last), name in (
        (axes.xaxis, pixels_across, ends, "time (seconds)" if is_sound else "x (pixels)"),
        (axes.yaxis, pixels_down, (top, bottom), "" if is_sound else "y (pixels)"),
    ):
        if not name:
            continue
        ticks = [
            tick
            for tick in MaxNLocator(max(2, int(2 * across))).tick_values(first, last)
            if first <= tick <= last
        ]
        places = [(tick - first) / ((last - first) or 1.0) * pixels - 0.5 for tick in ticks]
        axis.set_ticks(places, [f"{tick:g}" for tick in ticks])
        axis.set_label_text(name, fontsize=NAME_SIZE)
        axis.labelpad = 1.5


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


MOST_ROW_FEW, TALLEST_ROW = 3, 1.5
NAME_CELLS, NAME_SHARE, MOST_NAME_LINES = 22, 0.2, 4


class PictureMapsPanel:
    """One row per picture: its file name, the plain picture, and its maps under their names."""

    def __init__(self, maps: PictureMaps, display: Display) -> None:
        self.maps, self.scale = maps, display.scale_colors
        self.title = title_of(maps)
        self.fits_single = len(maps.names) <= MOST_ROW_FEW
        self.legend = " ".join(filter(None, (f"{self.title}. Colour: {OWN_RANGE}.", left_out(maps))))

    def _names(self, width: float) -> tuple[list[list[str]], float]:
        """Return the lines of each name and the width of the longest."""
        cells = min(NAME_CELLS, int(NAME_SHARE * width / text_width("n")))
        names = [
            _first_of(wrap_cells(row_name(row), cells), MOST_NAME_LINES, cells) for row in self.maps.rows
        ]
        return names, widest([line for lines in names for line in lines]) + TICK

    def _sizes(self, width: float) -> tuple[float, list[tuple[float, float]]]:
        """Return the width of a column and the size of each row's pictures, with their shapes kept."""
        column = (width - self._names(width)[1] + GAP) / (1 + len(self.maps.names)) - GAP
        sizes = []
        for row in self.maps.rows:
            across, down = png_size(row.picture)
            scale = min(column / across, TALLEST_ROW * column / down)
            sizes.append((across * scale, down * scale))
        return column, sizes

    def _heights(self, width: float) -> list[float]:
        rows = zip(self._sizes(width)[1], self._names(width)[0], strict=True)
        return [max(down, len(lines) * CAPTION) + GAP for (_, down), lines in rows]

    def height(self, width: float) -> float:
        """Return the height of the bar, the names of the columns and the rows."""
        return BAR_SPACE + CAPTION + sum(self._heights(width)) + (CAPTION if left_out(self.maps) else 0.0)

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the colour bar, the column names once, and the rows."""
        (column, sizes), (names, label) = self._sizes(width), self._names(width)
        x = left + label
        draw_bar(figure, common_range([]), OWN_RANGE, (x, top), min(width - label, SINGLE))
        for place, name in enumerate((ORIGINAL, *map(plain_text, self.maps.names))):
            write(figure, shortened_to(name, column), x + place * (column + GAP), top + BAR_SPACE, LABEL_SIZE)
        heights = self._heights(width)
        tops = [top + BAR_SPACE + CAPTION + above for above in accumulate(heights, initial=0.0)]
        for row, lines, size, y in zip(self.maps.rows, names, sizes, tops, strict=False):
            write(figure, "\n".join(lines), left, y, LABEL_SIZE)
            self._draw_row(figure, row, (x, y), size, column)
        write(figure, left_out(self.maps), left, tops[-1], LABEL_SIZE)

    def _draw_row(
        self,
        figure: Figure,
        row: PictureRow,
        corner: tuple[float, float],
        size: tuple[float, float],
        column: float,
    ) -> None:
        pixels = pixels_in(row.picture, size[0])
        for place, tile in enumerate(tiles_of(self.maps, row)):
            axes = axes_at(figure, corner[0] + place * (column + GAP), corner[1], *size)
            draw_tile(axes, tile, pixels, self.scale)


def _first_of(lines: list[str], most: int, cells: int) -> list[str]:
    """Return all lines, or the first lines that fit, with the last one cut."""
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shortened("".join(lines[most - 1 :]), cells)]
