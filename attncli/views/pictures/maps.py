"""The maps of a picture: one matrix with its tokens, a grid of some, or an atlas of very many."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from attncli.views import Display
from attncli.views.colormaps import shading
from attncli.views.matrices import Matrix, place_names, scale_of
from attncli.views.pictures.image import draw_bar, draw_image, draw_numbers, image
from attncli.views.pictures.parts import Maps
from attncli.views.pictures.places import (
    LABEL_HEIGHT,
    TITLE_CHARACTER,
    TITLE_HEIGHT,
    axes_at,
    labels,
    longest,
    set_labels,
)

BAR_GAP, BAR_WIDTH, BAR_LABELS = 0.12, 0.12, 0.55
LARGEST_CELL, LEAST_MAP = 0.36, 0.4
# The size of a panel by how many there are: few are read, many are compared.
PANEL_SIZES = {1: 4.2, 4: 2.6, 9: 2.1, 16: 1.7}
SMALLEST_PANEL, LARGEST_PANEL, WIDEST_ATLAS, TALLEST_ATLAS = 0.25, 1.1, 13.0, 26.0


class MapsBlock:
    """One matrix with its tokens, a grid of some with shared tokens, or an atlas of very many."""

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps, self.matrices = maps, maps.matrices
        first = self.matrices[0]
        self.shading = shading(
            np.stack([matrix.drawn for matrix in self.matrices]),
            scale_of(display.scale_colors, first.axes),
            skip_keys=display.skip_sink if first.axes[1] == "key" else 0,
            from_zero=first.is_weights,
            compared=maps.compared,
        )
        self.precision = display.screen_precision
        self.columns, self.rows = self._grid()
        self.is_atlas = len(self.matrices) > max(PANEL_SIZES)
        self.row_labels, self.column_labels = self._axis_labels(first)
        self.panel_width, self.panel_height = self._panel(first)
        self.gap = 0.0 if self.is_atlas else 0.12
        self.panel_title = TITLE_HEIGHT if len(self.matrices) > 1 and not self.is_atlas else 0.0
        self.left = longest(self.row_labels) + (0.0 if self.is_atlas else 0.15)
        self.above = TITLE_HEIGHT * (2 if self.is_atlas else 1)
        below = LABEL_HEIGHT if self.is_atlas else longest(self.column_labels) + 0.15
        self.across = self.columns * (self.panel_width + self.gap) - self.gap
        map_width = self.left + self.across + BAR_GAP + BAR_WIDTH + BAR_LABELS
        self.width = max(map_width, TITLE_CHARACTER * len(self.title))
        self.grid_height = self.rows * (self.panel_height + self.gap + self.panel_title) - self.gap
        self.height = self.above + self.grid_height + below

    @property
    def title(self) -> str:
        """What all panels are, and how many are left out."""
        first, count, total = self.matrices[0], len(self.matrices), self.maps.total
        if count == 1:
            return replace(first, name=self.maps.name).title.replace("_", " ")
        part = f": the first {count} of {total}" if total > count else ""
        return f"{self.maps.name} ({' × '.join(first.axes)}){part}".replace("_", " ")

    def _grid(self) -> tuple[int, int]:
        """Columns and rows: those of the last leading axis where there are several, else about a square."""
        count = len(self.matrices)
        if len(self.matrices[0].place) > 1:
            columns = self.matrices[-1].index[-1] + 1
        else:
            square = int(np.ceil(np.sqrt(count)))
            columns = next((width for width in range(square, 2 * square) if count % width == 0), square)
        return columns, -(-count // columns)

    def _axis_labels(self, first: Matrix) -> tuple[list[str], list[str]]:
        if not self.is_atlas:
            num_rows, num_columns = first.values.shape
            return labels(first.rows, num_rows), labels(first.columns, num_columns)
        leftmost = self.matrices[:: self.columns]
        if len(first.place) == 1:
            return place_names(matrix.place[0] for matrix in leftmost), []
        rows = [", ".join(place_names(matrix.place[:-1])) for matrix in leftmost]
        return rows, [str(column) for column in range(self.columns)]

    def _panel(self, first: Matrix) -> tuple[float, float]:
        """The width and the height of a panel."""
        num_rows, num_columns = first.values.shape
        most = max(num_rows, num_columns)
        if self.is_atlas:
            size = min(LARGEST_PANEL, WIDEST_ATLAS / self.columns, TALLEST_ATLAS / self.rows)
            size = max(size, SMALLEST_PANEL)
            return size * max(0.2, num_columns / most), size * max(0.2, num_rows / most)
        size = next(size for count, size in PANEL_SIZES.items() if len(self.matrices) <= count)
        is_of_vectors = first.axes[1] == "dim"
        cell = min(LARGEST_CELL, size / (num_rows if is_of_vectors else most))
        width = min(size, LARGEST_CELL * num_columns) if is_of_vectors else max(LEAST_MAP, cell * num_columns)
        return width, max(LEAST_MAP, cell * num_rows)

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """The title, the panels, and the colour bar beside them, from that place in inches."""
        total_width, total_height = figure.get_size_inches()
        figure.text(left / total_width, 1 - top / total_height, self.title, va="top", fontsize=8)
        left, top = left + self.left, top + self.above
        draw = self._draw_atlas if self.is_atlas else self._draw_panels
        draw(figure, left, top)
        bar_height = max(0.8, min(self.grid_height, 3.0)) if self.rows > 1 else self.panel_height
        place = (left + self.across + BAR_GAP, top + self.panel_title, BAR_WIDTH, bar_height)
        draw_bar(figure, self.shading, place)

    def _draw_panels(self, figure: Figure, left: float, top: float) -> None:
        num_panels, size = len(self.matrices), (self.panel_width, self.panel_height)
        for number, (matrix, places) in enumerate(zip(self.matrices, self.shading.places, strict=True)):
            row, column = divmod(number, self.columns)
            x = left + column * (self.panel_width + self.gap)
            y = top + row * (self.panel_height + self.gap + self.panel_title) + self.panel_title
            axes = axes_at(figure, x, y, *size)
            rgb = image(places, self.shading.is_diverging)
            draw_image(axes, rgb, is_fine=max(rgb.shape) > 100 * self.panel_height)
            draw_numbers(axes, matrix, rgb, size, self.precision)
            if num_panels > 1:
                axes.set_title(", ".join(place_names(matrix.place)), loc="left", pad=3)
            is_lowest = number + self.columns >= num_panels
            set_labels(axes.yaxis, matrix.axes[0], self.row_labels if column == 0 else [], self.panel_height)
            set_labels(axes.xaxis, matrix.axes[1], self.column_labels if is_lowest else [], self.panel_width)
            axes.tick_params(axis="x", labelrotation=90)

    def _draw_atlas(self, figure: Figure, left: float, top: float) -> None:
        """All matrices as one image, with a margin between them."""
        _, num_rows, num_columns = self.shading.places.shape
        margin = max(1, round(0.06 * max(num_rows, num_columns)))
        down, along = num_rows + margin, num_columns + margin
        atlas = np.full((self.rows * down, self.columns * along, 3), 255, dtype=np.uint8)
        for number, places in enumerate(self.shading.places):
            row, column = divmod(number, self.columns)
            y, x = row * down, column * along
            atlas[y : y + num_rows, x : x + num_columns] = image(places, self.shading.is_diverging)
        axes = axes_at(figure, left, top, self.across, self.rows * self.panel_height)
        draw_image(axes, atlas, is_fine=num_rows > 150 * self.panel_height)
        axes.spines[:].set_visible(False)
        axes.set_yticks(np.arange(self.rows) * down + num_rows / 2, self.row_labels)
        columns = np.arange(self.columns) * along + num_columns / 2
        axes.set_xticks(columns if self.column_labels else [], self.column_labels)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
