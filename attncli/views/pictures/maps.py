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
LARGEST_CELL = 0.36
# The side of a panel by how many there are: few are read, many are compared.
SIDES = {1: 4.2, 4: 2.6, 9: 2.1, 16: 1.7}
SMALLEST_PANEL, LARGEST_PANEL, WIDEST_ATLAS, TALLEST_ATLAS = 0.25, 1.1, 13.0, 26.0


class MapsBlock:
    """One matrix with its tokens, a grid of some with shared tokens, or an atlas of very many."""

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps = maps
        first = maps.matrices[0]
        skip = display.skip_sink if first.axes[1] == "key" else 0
        self.shading = shading(
            np.stack([matrix.drawn for matrix in maps.matrices]),
            scale_of(display.scale_colors, first.axes),
            skip_keys=skip,
            from_zero=first.is_weights,
            compared=maps.compared,
        )
        self.precision = display.screen_precision
        self.columns, self.rows = self._grid()
        self.is_atlas = len(maps.matrices) > max(SIDES)
        self.row_labels, self.column_labels = self._axis_labels(first)
        self.panel_width, self.panel_height = self._panel(first)
        self.gap = 0.0 if self.is_atlas else 0.12
        self.left = longest(self.row_labels) + (0.0 if self.is_atlas else 0.15)
        self.above = TITLE_HEIGHT * (2 if self.is_atlas else 1)
        self.below = LABEL_HEIGHT if self.is_atlas else longest(self.column_labels) + 0.15
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
            return replace(matrices[0], name=self.maps.name).title.replace("_", " ")
        part = f": the first {len(matrices)} of {total}" if total > len(matrices) else ""
        return f"{self.maps.name} ({' × '.join(matrices[0].axes)}){part}".replace("_", " ")

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
            return labels(first.rows, num_rows), labels(first.columns, num_columns)
        leftmost = self.maps.matrices[:: self.columns]
        if len(first.place) == 1:
            return place_names(matrix.place[0] for matrix in leftmost), []
        rows = [", ".join(place_names(matrix.place[:-1])) for matrix in leftmost]
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
        draw_bar(figure, self.shading, place)

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
            colours = image(shades, self.shading.is_diverging)
            draw_image(axes, colours, 100 * self.panel_height)
            draw_numbers(axes, matrix, colours, (self.panel_width, self.panel_height), self.precision)
            if num_panels > 1:
                axes.set_title(", ".join(place_names(matrix.place)), loc="left", pad=3)
            is_lowest = number + self.columns >= num_panels
            set_labels(axes.yaxis, matrix.axes[0], self.row_labels if column == 0 else [], self.panel_height)
            set_labels(axes.xaxis, matrix.axes[1], self.column_labels if is_lowest else [], self.panel_width)
            axes.tick_params(axis="x", labelrotation=90)

    def _draw_atlas(self, figure: Figure, left: float, top: float) -> None:
        """All matrices as one image, with a margin between them."""
        places = self.shading.places
        _, num_rows, num_columns = places.shape
        margin = max(1, round(0.06 * max(num_rows, num_columns)))
        shape = self.rows * (num_rows + margin), self.columns * (num_columns + margin), 3
        atlas = np.full(shape, 255, dtype=np.uint8)
        for number, shades in enumerate(places):
            row, column = divmod(number, self.columns)
            y, x = row * (num_rows + margin), column * (num_columns + margin)
            atlas[y : y + num_rows, x : x + num_columns] = image(shades, self.shading.is_diverging)
        width, height = self.columns * self.panel_width, self.rows * self.panel_height
        axes = axes_at(figure, left, top, width, height)
        is_fine = num_rows > 150 * self.panel_height
        axes.imshow(atlas, aspect="auto", interpolation="antialiased" if is_fine else "nearest")
        for side in axes.spines.values():
            side.set_visible(False)
        rows = np.arange(self.rows) * (num_rows + margin) + num_rows / 2
        columns = np.arange(self.columns) * (num_columns + margin) + num_columns / 2
        axes.set_yticks(rows, self.row_labels)
        axes.set_xticks(columns if self.column_labels else [], self.column_labels)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
