"""The blocks of a picture: maps with labels and a colour bar, and charts; sizes in inches."""

from collections.abc import Iterator
from itertools import count
from textwrap import wrap
from typing import Protocol
from unicodedata import bidirectional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from rich.cells import cell_len

from attncli.views import Display
from attncli.views.colormaps import COOLWARM, VIRIDIS, Shading, colours, shading
from attncli.views.columns import shortened
from attncli.views.matrices import Matrix
from attncli.views.picture_parts import Lines, Maps
from attncli.views.plain_text import plain_text

CHARACTER, LABEL_HEIGHT, TITLE_HEIGHT = 0.068, 0.13, 0.2
LONGEST_LABEL = 16
LEFT_TO_RIGHT = "\u200e"
NO_NUMBER = (0.93, 0.93, 0.93, 1.0)
BAR_GAP, BAR_WIDTH, BAR_LABELS = 0.12, 0.12, 0.55
TITLE_CHARACTER = 0.075
LARGEST_CELL = 0.36
# The side of a panel by how many there are: few are read, many are compared.
SIDES = {1: 4.2, 4: 2.6, 9: 2.1, 16: 1.7}
SMALLEST_PANEL, LARGEST_PANEL, WIDEST_ATLAS, TALLEST_ATLAS = 0.25, 1.1, 13.0, 26.0
CHART_WIDTH, CHART_HEIGHT = 4.2, 3.0


class Block(Protocol):
    """Something of a known size that draws itself at a place, from the figure's upper left corner."""

    width: float
    height: float

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw on the figure."""


def heading_lines(text: str, width: float) -> list[str]:
    """A text in lines that fit the width."""
    return wrap(text, max(20, int(width / TITLE_CHARACTER)), max_lines=4, placeholder=" …") or [""]


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    return figure.add_axes(
        (left / total_width, bottom / total_height, width / total_width, height / total_height)
    )


def _labels(tokens: tuple[str, ...], size: int) -> list[str]:
    """Position and token of each place, the token shortened; the position alone where there are no tokens."""
    if not tokens:
        return [str(place) for place in range(size)]
    return [_label(place, shortened(plain_text(token), LONGEST_LABEL)) for place, token in enumerate(tokens)]


def _label(place: int, token: str) -> str:
    """The position stays before a token that is written from right to left."""
    is_leftward = any(bidirectional(character) in ("R", "AL") for character in token)
    return f"{LEFT_TO_RIGHT if is_leftward else ''}{place} {token}".rstrip()


def _longest(labels: list[str]) -> float:
    return CHARACTER * max(map(cell_len, labels)) + 0.1


def _image(shades: np.ndarray, is_diverging: bool) -> np.ndarray:
    """Red, green, blue and opacity of places on the map; grey for no number."""
    table = colours(COOLWARM if is_diverging else VIRIDIS) / 255
    levels = np.clip(np.nan_to_num(shades) * 255, 0, 255).round().astype(int)
    rgba = np.concatenate([table[levels], np.ones((*shades.shape, 1))], axis=-1)
    rgba[np.isnan(shades)] = NO_NUMBER
    return rgba


def _draw_image(axes: Axes, shades: np.ndarray, is_diverging: bool, dots: float) -> None:
    """One colour an entry; entries smaller than a dot are averaged."""
    is_fine = max(shades.shape) > dots
    axes.imshow(
        _image(shades, is_diverging), aspect="auto", interpolation="antialiased" if is_fine else "nearest"
    )


class MapsBlock:
    """One matrix with its tokens, a grid of some with shared tokens, or an atlas of very many."""

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps = maps
        first = maps.matrices[0]
        skip = display.skip_sink if first.axes[1] == "key" else 0
        stack = np.stack([matrix.values for matrix in maps.matrices])
        self.shading = shading(stack, display.scale_colors, skip_keys=skip)
        self.columns, self.rows = self._grid()
        self.is_atlas = len(maps.matrices) > max(SIDES)
        self.row_labels, self.column_labels = self._axis_labels(first)
        self.panel_width, self.panel_height = self._panel(first)
        self.gap = 0.0 if self.is_atlas else 0.12
        self.left = _longest(self.row_labels) + (0.0 if self.is_atlas else 0.15)
        self.above = TITLE_HEIGHT * (2 if self.is_atlas else 1)
        self.below = LABEL_HEIGHT if self.is_atlas else _longest(self.column_labels) + 0.15
        across = self.columns * (self.panel_width + self.gap) - self.gap
        title = TITLE_CHARACTER * len(self.title)
        self.width = max(self.left + across + BAR_GAP + BAR_WIDTH + BAR_LABELS, title)
        self.grid_height = self.rows * (self.panel_height + self.gap + self._panel_title) - self.gap
        self.height = self.above + self.grid_height + self.below

    @property
    def title(self) -> str:
        """What all panels are, and how many are left out."""
        matrices, total = self.maps.matrices, self.maps.total
        if len(matrices) == 1:
            return matrices[0].title
        part = f": the first {len(matrices)} of {total}" if total > len(matrices) else ""
        return f"{self.maps.name} ({' × '.join(matrices[0].axes)}){part}"

    @property
    def _panel_title(self) -> float:
        return TITLE_HEIGHT if len(self.maps.matrices) > 1 and not self.is_atlas else 0.0

    def _grid(self) -> tuple[int, int]:
        """Columns and rows: as the two axes before have them, else about a square."""
        matrices = self.maps.matrices
        if len(matrices[0].place) > 1:
            columns = matrices[-1].place[-1][1] + 1
        else:
            square = int(np.ceil(np.sqrt(len(matrices))))
            full_rows = (width for width in range(square, 2 * square) if len(matrices) % width == 0)
            columns = next(full_rows, square)
        return columns, -(-len(matrices) // columns)

    def _axis_labels(self, first: Matrix) -> tuple[list[str], list[str]]:
        if not self.is_atlas:
            num_rows, num_columns = first.values.shape
            return _labels(first.rows, num_rows), _labels(first.columns, num_columns)
        leftmost = self.maps.matrices[:: self.columns]
        if len(first.place) == 1:
            return [f"{matrix.place[0][0]} {matrix.place[0][1]}" for matrix in leftmost], []
        rows = [", ".join(f"{axis} {number}" for axis, number in matrix.place[:-1]) for matrix in leftmost]
        return rows, [str(column) for column in range(self.columns)]

    def _panel(self, first: Matrix) -> tuple[float, float]:
        num_rows, num_columns = first.values.shape
        if self.is_atlas:
            side = min(LARGEST_PANEL, WIDEST_ATLAS / self.columns, TALLEST_ATLAS / self.rows)
            longest = max(num_rows, num_columns)
            side = max(side, SMALLEST_PANEL)
            return side * max(0.2, num_columns / longest), side * max(0.2, num_rows / longest)
        side = next(side for count, side in SIDES.items() if len(self.maps.matrices) <= count)
        cell = min(LARGEST_CELL, side / max(num_rows, num_columns))
        if first.axes[1] == "dim":
            cell = min(LARGEST_CELL, side / num_rows)
            return min(side, LARGEST_CELL * num_columns), max(0.4, cell * num_rows)
        return max(0.4, cell * num_columns), max(0.4, cell * num_rows)

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """The title, the panels, and the colour bar beside them."""
        total_width, total_height = figure.get_size_inches()
        figure.text(left / total_width, 1 - top / total_height, self.title, va="top", fontsize=8)
        draw = self._draw_atlas if self.is_atlas else self._draw_panels
        draw(figure, left + self.left, top + self.above)
        across = self.columns * (self.panel_width + self.gap) - self.gap
        bar_height = max(0.8, min(self.grid_height, 3.0)) if self.rows > 1 else self.panel_height
        bar_top = top + self.above + self._panel_title
        place = (left + self.left + across + BAR_GAP, bar_top, BAR_WIDTH, bar_height)
        _draw_bar(figure, self.shading, place)

    def _draw_panels(self, figure: Figure, left: float, top: float) -> None:
        num_panels = len(self.maps.matrices)
        for number, (matrix, shades) in enumerate(zip(self.maps.matrices, self.shading.places, strict=True)):
            row, column = divmod(number, self.columns)
            step = self.panel_height + self.gap + self._panel_title
            axes = axes_at(
                figure,
                left + column * (self.panel_width + self.gap),
                top + row * step + self._panel_title,
                self.panel_width,
                self.panel_height,
            )
            _draw_image(axes, shades, self.shading.is_diverging, 100 * self.panel_height)
            if num_panels > 1:
                axes.set_title(
                    ", ".join(f"{axis} {place}" for axis, place in matrix.place), loc="left", pad=3
                )
            is_lowest = number + self.columns >= num_panels
            _set_labels(axes.yaxis, matrix.axes[0], self.row_labels if column == 0 else [], self.panel_height)
            _set_labels(axes.xaxis, matrix.axes[1], self.column_labels if is_lowest else [], self.panel_width)
            axes.tick_params(axis="x", labelrotation=90)

    def _draw_atlas(self, figure: Figure, left: float, top: float) -> None:
        """All matrices as one image, with a margin between them."""
        places = self.shading.places
        _, num_rows, num_columns = places.shape
        margin = max(1, round(0.06 * max(num_rows, num_columns)))
        image = np.ones((self.rows * (num_rows + margin), self.columns * (num_columns + margin), 4))
        for number, shades in enumerate(places):
            row, column = divmod(number, self.columns)
            y, x = row * (num_rows + margin), column * (num_columns + margin)
            image[y : y + num_rows, x : x + num_columns] = _image(shades, self.shading.is_diverging)
        width, height = self.columns * self.panel_width, self.rows * self.panel_height
        axes = axes_at(figure, left, top, width, height)
        is_fine = num_rows > 150 * self.panel_height
        axes.imshow(image, aspect="auto", interpolation="antialiased" if is_fine else "nearest")
        for side in axes.spines.values():
            side.set_visible(False)
        rows = np.arange(self.rows) * (num_rows + margin) + num_rows / 2
        columns = np.arange(self.columns) * (num_columns + margin) + num_columns / 2
        axes.set_yticks(rows, self.row_labels)
        axes.set_xticks(columns if self.column_labels else [], self.column_labels)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)


def _set_labels(axis: object, name: str, labels: list[str], length: float) -> None:
    """Labels so far apart that they stay readable, and the name of the axis where there are any."""
    if not labels:
        axis.set_ticks([])  # type: ignore[attr-defined]
        return
    step = next(step for step in _steps() if step * length >= LABEL_HEIGHT * len(labels))
    axis.set_ticks(range(0, len(labels), step), labels[::step])  # type: ignore[attr-defined]
    axis.set_label_text(name)  # type: ignore[attr-defined]


def _steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, ..."""
    return (digit * 10**power for power in count() for digit in (1, 2, 5))


def _draw_bar(figure: Figure, shade: Shading, place: tuple[float, float, float, float]) -> None:
    """Which colour is which number; nothing where there is no number."""
    if np.isnan(shade.low):
        return
    low, high = shade.low, shade.high
    if low == high:  # every number is the same: it has the colour of the end away from zero
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    is_log = shade.scale == "log" and shade.low < shade.high
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    colour_map = ListedColormap(colours(COOLWARM if shade.is_diverging else VIRIDIS) / 255)
    axes = axes_at(figure, *place)
    bar = figure.colorbar(ScalarMappable(norm, colour_map), cax=axes, format=FuncFormatter(_bar_number))
    bar.ax.minorticks_off()
    if shade.scale == "row":
        bar.set_ticks([low, high], labels=["least\nof a row", "most\nof a row"])


def _bar_number(value: float, place: int | None) -> str:
    return f"{value:.4g}"


class LinesBlock:
    """A chart of lines over a common axis."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.width, self.height = CHART_WIDTH + 0.5, CHART_HEIGHT + TITLE_HEIGHT + 0.45

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """The lines, with a legend where there are several."""
        axes = axes_at(figure, left + 0.5, top + TITLE_HEIGHT, CHART_WIDTH, CHART_HEIGHT)
        axes.set_title(self.lines.title, loc="left", pad=3)
        steps = colours(VIRIDIS)[np.linspace(0, 215, max(2, len(self.lines.lines))).astype(int)] / 255
        for line, colour in zip(self.lines.lines, steps, strict=False):
            marker = "o" if self.lines.marked else None
            axes.plot(
                line.x, line.y, color=tuple(colour), label=line.label, marker=marker, markersize=3, lw=1.2
            )
        axes.set_xlabel(self.lines.x_name)
        axes.set_ylim(bottom=0)
        if self.lines.marked:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, color="0.9", linewidth=0.5)
        axes.set_axisbelow(True)
        if len(self.lines.lines) > 1:
            axes.legend(frameon=False)
