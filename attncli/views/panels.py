"""Panels of a figure: one matrix, many matrices that share their axes, and curves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attncli.records.meanings import spaced
from attncli.records.report import PLACES
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.canvas import (
    BAR_SPACE,
    LABEL_SIZE,
    LINE,
    NAME_SIZE,
    SINGLE,
    axes_at,
    draw_bar,
    draw_image,
    draw_numbers,
    draw_signs,
    image,
    labels,
    number_texts,
    set_labels,
    shortened_to,
    text_width,
    widest,
    write,
)
from attncli.views.colours import VIRIDIS, Shading, colours, shading
from attncli.views.matrices import (
    ATTENTION_AXES,
    Curves,
    Matrix,
    Spreads,
    axes_in_words,
    colour_scale,
    in_words,
    place_names,
    tensor_unit,
)
from attncli.views.texts import LabelledAxis, fixed

AXIS_NAME, TICK = NAME_SIZE * LINE + 0.02, 0.06
"""The space for the name of an axis, and between its labels and the map."""
PITCH = LABEL_SIZE * LINE
"""The least height of a row with a label."""
LARGEST_CELL, LARGEST_ROW, TALLEST = 0.8, 0.25, 1.15
"""The inches of the largest cell and of the tallest row of other maps; the greatest height per width."""
LONGEST_PAGE = 8.5
"""The greatest height of a figure with a row for each layer."""


@dataclass(frozen=True)
class Maps:
    """The first matrices of one tensor, or of compared tensors, out of `total`, and their axes.

    `name` is the tensor's, or the statistic's of a grid of heads, and `label` its name for people. The
    tensors in `compared` share its colours.
    """

    name: str
    label: str
    title: str
    axes: tuple[LabelledAxis, LabelledAxis]
    matrices: list[Matrix]
    total: int
    compared: Sequence[np.ndarray] = ()
    panel_names: Sequence[str] = ()

    @property
    def number(self) -> str:
        """The name of the numbers with their unit, as in `entropy (nats)`."""
        first = self.matrices[0]
        unit = tensor_unit(self.name, first.axes)
        if first.is_weights and unit == "weight":
            return "attention weight"
        if "score" in unit:
            return unit
        words = spaced(in_words(self.name))
        return self.label if unit in (words, words.removesuffix("s")) else f"{self.label} ({unit})"

    @property
    def axis_names(self) -> tuple[str, str]:
        """What runs along the rows and the columns, with the size of pooled blocks."""
        first, second = (
            axis_name(axis.name) + (f" of {axis.step} {axis.noun}s" if axis.step > 1 else "")
            for axis in self.axes
        )
        return first, second

    def shaded(self, display: Display) -> Shading:
        """Return the positions of all numbers on one colour map."""
        first = self.matrices[0]
        return shading(
            np.stack([matrix.drawn for matrix in self.matrices]),
            colour_scale(display.scale_colors, first.axes),
            skip_keys=self.axes[1].skipped(display.skip_first_keys),
            from_zero=first.is_weights,
            compared=self.compared,
        )


AXIS_NAMES = {"query": "query token", "key": "key token", "dim": "dimension", "token": "token"}


def axis_name(axis: str) -> str:
    """Return what runs along an axis."""
    return AXIS_NAMES.get(axis, in_words(axis).replace("_", " "))


NEARLY_ZERO = 1e-12
"""Below this, an end of a range is the rounding error of 0."""


def range_sentence(maps: Maps, shades: Shading) -> str:
    """Return a sentence about the colours, such as `Colour: attention weight, from 0 to 0.93.`"""
    if np.isnan(shades.low):
        return "There are no numbers to colour."
    low, high = (f"{end if abs(end) >= NEARLY_ZERO else 0.0:.3g}" for end in (shades.low, shades.high))
    ends = (
        "each row from its own least to its own largest" if shades.scale == "row" else f"from {low} to {high}"
    )
    scale = ", on a logarithmic scale" if shades.scale == "log" else ""
    sentences = [f"Colour: {maps.number}, {ends}{scale}."]
    if shades.is_diverging:
        sentences.append("Negative numbers are crossed out where cells have no numbers.")
    if np.isnan(shades.places).any():
        sentences.append("White cells have no number.")
    return " ".join(sentences)


NAMED = ("way", "source", "row", "column")
"""Axes whose labels are names, not tokens with a position."""


def axis_labels(matrix: Matrix, width: float) -> tuple[list[str], list[str]]:
    """Return the labels of the rows and columns of a matrix in a panel of that width."""
    sides = zip(matrix.axes, (matrix.rows, matrix.columns), matrix.values.shape, strict=True)
    rows, columns = (
        labels(names, size, width, has_positions=axis not in NAMED) for axis, names, size in sides
    )
    return rows, columns


def bar_name(maps: Maps, shades: Shading) -> str:
    """Return the name of a colour bar."""
    return f"{maps.number}, each row separately" if shades.scale == "row" else maps.number


class MapPanel:
    """One matrix with the labels of its rows and columns, its numbers where they fit, and a colour bar."""

    fits_single = True

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps, (self.matrix,) = maps, maps.matrices
        self.title = maps.title
        self.shading = maps.shaded(display)
        self.precision = display.screen_precision
        axes = axes_in_words(self.matrix.axes).replace("_", " ")
        self.legend = f"{maps.title} ({axes}). {range_sentence(maps, self.shading)}"

    @property
    def _is_square(self) -> bool:
        return self.matrix.axes in ATTENTION_AXES

    def _map_size(self, width: float, left: float) -> tuple[float, float]:
        """Return the width and height of the map itself."""
        num_rows, num_columns = self.matrix.values.shape
        across = min(width - left - TICK, max(LARGEST_CELL * num_columns, 1.5))
        cell = across / num_columns
        row = cell if self._is_square else min(max(cell, PITCH), LARGEST_ROW)
        tallest = TALLEST * width
        if self.matrix.axes == PLACES:
            tallest = max(tallest, min(PITCH * num_rows, LONGEST_PAGE))
        return across, min(max(row * num_rows, LARGEST_ROW), tallest)

    def _labels(self, width: float) -> tuple[list[str], list[str]]:
        return axis_labels(self.matrix, width)

    def _layout(self, width: float) -> tuple[float, tuple[float, float], bool, float]:
        """Return the left margin, the size of the map, if column labels are upright, and their height."""
        rows, columns = self._labels(width)
        left = AXIS_NAME + widest(rows) + TICK
        size = self._map_size(width, left)
        is_upright = widest(columns) > size[0] / len(columns) - 0.05 and widest(columns) > 0.2
        return left, size, is_upright, TICK + (widest(columns) if is_upright else PITCH)

    def height(self, width: float) -> float:
        """Return the height of the bar, the map and its labels."""
        _, (_, down), _, below = self._layout(width)
        return BAR_SPACE + down + below + AXIS_NAME

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the colour bar and, below it, the map."""
        margin, size, is_upright, below = self._layout(width)
        rows, columns = self._labels(width)
        x, y = left + margin, top + BAR_SPACE
        texts = number_texts(self.matrix, size, self.precision)
        has_signs = self.shading.is_diverging and texts is None
        draw_bar(
            figure, self.shading, bar_name(self.maps, self.shading), (x, top), size[0], has_signs=has_signs
        )
        axes = axes_at(figure, x, y, *size)
        (shades,) = self.shading.places
        rgb = image(shades, self.shading.is_diverging)
        draw_image(axes, rgb)
        if texts is not None:
            draw_numbers(axes, texts, rgb)
        elif has_signs:
            draw_signs(axes, shades, rgb, size[0] / len(columns))
        set_labels(axes.yaxis, rows, size[1])
        set_labels(axes.xaxis, columns, size[0], needed=PITCH if is_upright else widest(columns) + 0.05)
        axes.tick_params(axis="x", labelrotation=90 if is_upright else 0)
        draw_axis_names(figure, self.maps.axis_names, (left, x, y), size, below)


def draw_axis_names(
    figure: Figure,
    names: tuple[str, str],
    corner: tuple[float, float, float],
    size: tuple[float, float],
    below: float,
) -> None:
    """Write what runs along the rows, at the left edge, and along the columns, below their labels."""
    edge, x, y = corner
    row, column = names
    middle = {"ha": "center", "va": "center", "rotation": 90}
    write(figure, row, edge + NAME_SIZE * LINE / 2, y + size[1] / 2, NAME_SIZE, **middle)
    write(figure, column, x + size[0] / 2, y + size[1] + below, NAME_SIZE, ha="center")


MOST_PANELS = 16
"""The most matrices that each have labels; more become an atlas."""
GAP, FOLD_GAP = 0.1, 0.15
LEAST_PER_KEY = 0.07
"""The least inches per key in a panel that is read in one column."""
SMALLEST_PANEL = 0.6


class GridPanel:
    """Matrices that share their axes and colours, each under its name."""

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps, self.first = maps, maps.matrices[0]
        self.shading = maps.shaded(display)
        self.precision = display.screen_precision
        count = len(maps.matrices)
        full = (n for n in (4, 3, 5, 2) if count % n == 0 and count // n <= n + 1)
        self.columns = next(full, min(count, 4))
        self.rows = -(-count // self.columns)
        self.names = list(maps.panel_names) or [", ".join(place_names(m.place)) for m in maps.matrices]
        self.title = maps.title
        axes = axes_in_words(self.first.axes).replace("_", " ")
        self.legend = f"{maps.title} ({axes}). {range_sentence(maps, self.shading)}"
        across = self._layout(SINGLE)[1][0]
        self.fits_single = across >= max(SMALLEST_PANEL, LEAST_PER_KEY * self.first.values.shape[1])

    def _labels(self, width: float) -> tuple[list[str], list[str]]:
        return axis_labels(self.first, width)

    def _layout(self, width: float) -> tuple[float, tuple[float, float]]:
        rows, _ = self._labels(width)
        left = AXIS_NAME + widest(rows) + TICK
        across = (width - left - TICK + GAP) / self.columns - GAP
        num_rows, num_columns = self.first.values.shape
        down = across * num_rows / num_columns if self.first.axes in ATTENTION_AXES else across
        return left, (across, min(max(down, 0.4), TALLEST * across))

    def height(self, width: float) -> float:
        """Return the height of the bar, the named matrices and the labels of the lowest."""
        down = self._layout(width)[1][1]
        below = TICK + widest(self._labels(width)[1])
        return BAR_SPACE + self.rows * (PITCH + down + GAP) - GAP + below + AXIS_NAME

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the colour bar and, below it, the matrices from left to right."""
        margin, size = self._layout(width)
        rows, columns = self._labels(width)
        x, y = left + margin, top + BAR_SPACE
        whole = self.columns * (size[0] + GAP) - GAP, self.rows * (PITCH + size[1] + GAP) - GAP
        texts = [number_texts(matrix, size, self.precision) for matrix in self.maps.matrices]
        has_signs = self.shading.is_diverging and None in texts
        draw_bar(
            figure,
            self.shading,
            bar_name(self.maps, self.shading),
            (x, top),
            min(whole[0], SINGLE),
            has_signs=has_signs,
        )
        for number, shades in enumerate(self.shading.places):
            row, column = divmod(number, self.columns)
            corner = x + column * (size[0] + GAP), y + row * (PITCH + size[1] + GAP) + PITCH
            name = shortened_to(plain_text(self.names[number]), size[0])
            write(figure, name, corner[0], corner[1] - 0.02, LABEL_SIZE, va="bottom")
            axes = axes_at(figure, *corner, *size)
            rgb = image(shades, self.shading.is_diverging)
            draw_image(axes, rgb)
            if has_signs:
                draw_signs(axes, shades, rgb, size[0] / len(columns))
            elif (cells := texts[number]) is not None:
                draw_numbers(axes, cells, rgb)
            is_lowest = number + self.columns >= len(self.maps.matrices)
            set_labels(axes.yaxis, rows if column == 0 else [], size[1])
            set_labels(axes.xaxis, columns if is_lowest else [], size[0])
            axes.tick_params(axis="x", labelrotation=90)
        draw_axis_names(figure, self.maps.axis_names, (left, x, y), whole, TICK + widest(columns))


class AtlasPanel:
    """A thumbnail per matrix, by layer and head, without the labels of their tokens."""

    fits_single = False

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps, self.matrices = maps, maps.matrices
        self.shading = maps.shaded(display)
        first, count = self.matrices[0], len(self.matrices)
        if len(first.place) > 1:
            self.columns = self.matrices[-1].index[-1] + 1
        else:
            square = int(np.ceil(np.sqrt(count)))
            self.columns = next((width for width in range(square, 2 * square) if count % width == 0), square)
        rows = -(-count // self.columns)
        # If there are many more layers than heads, the later layers stand to the right of the first ones.
        self.folds = max(1, round(np.sqrt(rows / self.columns)))
        self.rows = -(-rows // self.folds)
        leftmost = self.matrices[:: self.columns]
        if len(first.place) > 1:
            self.row_labels = [", ".join(place_names(matrix.place[:-1])) for matrix in leftmost]
            self.column_labels = [str(column) for column in range(self.columns)]
            self.across = axis_name(first.place[-1][0])
        else:
            self.row_labels = place_names(matrix.place[0] for matrix in leftmost)
            self.column_labels = [f"+{column}" for column in range(self.columns)]
            self.across = ""
        self.title = maps.title
        part = f": the first {count:,} of {maps.total:,}" if maps.total > count else ""
        num_rows, num_columns = first.values.shape
        rows_name, columns_name = maps.axis_names
        self.legend = (
            f"{maps.title}{part}. Each map: {num_rows} × {num_columns}, {rows_name}s from top to bottom, "
            f"{columns_name}s from left to right. {range_sentence(maps, self.shading)}"
        )

    @cached_property
    def _left(self) -> float:
        return widest(self.row_labels) + TICK

    def _panel(self, width: float) -> tuple[float, float]:
        """Return the width and height of one thumbnail."""
        num_rows, num_columns = self.matrices[0].values.shape
        across = (width - self.folds * (self._left + FOLD_GAP) + FOLD_GAP) / self.folds / self.columns
        down = across * min(max(num_rows / num_columns, 0.2), 5.0)
        down = min(down, LONGEST_PAGE / self.rows)
        return min(across, down * min(max(num_columns / num_rows, 0.2), 5.0)), down

    def height(self, width: float) -> float:
        """Return the height of the bar, the labels and the thumbnails."""
        return float(BAR_SPACE + AXIS_NAME + PITCH + self.rows * self._panel(width)[1] + TICK)

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the colour bar and, below it, all matrices as one image per fold, separated by a margin."""
        across, down = self._panel(width)
        fold_width = self.columns * across + self._left + FOLD_GAP
        whole = self.folds * fold_width - self._left - FOLD_GAP
        draw_bar(
            figure,
            self.shading,
            bar_name(self.maps, self.shading),
            (left + self._left, top),
            min(whole, SINGLE),
        )
        y = top + BAR_SPACE + AXIS_NAME + PITCH
        for fold in range(self.folds):
            first, end = fold * self.rows, (fold + 1) * self.rows
            x = left + self._left + fold * fold_width
            places = self.shading.places[first * self.columns : end * self.columns]
            names = self.row_labels[first:end]
            atlas = self._atlas(places, len(names))
            axes = axes_at(figure, x, y, self.columns * across, len(names) * down)
            draw_image(axes, atlas)
            axes.spines[:].set_visible(False)
            num_rows, num_columns = places.shape[1:]
            step_down, step_along = len(atlas) / len(names), atlas.shape[1] / self.columns
            step = max(1, int(np.ceil(PITCH / down)))
            axes.set_yticks(np.arange(len(names))[::step] * step_down + (num_rows - 1) / 2, names[::step])
            step = max(1, int(np.ceil((widest(self.column_labels) + 0.04) / across)))
            columns = np.arange(self.columns)[::step] * step_along + (num_columns - 1) / 2
            axes.set_xticks(columns, self.column_labels[::step])
            axes.tick_params(length=0, labeltop=True, labelbottom=False)
            middle = x + self.columns * across / 2
            write(figure, self.across, middle, top + BAR_SPACE, NAME_SIZE, ha="center")

    def _atlas(self, of_maps: np.ndarray, num_lines: int) -> np.ndarray:
        _, num_rows, num_columns = of_maps.shape
        margin = max(1, round(0.06 * max(num_rows, num_columns)))
        down, along = num_rows + margin, num_columns + margin
        atlas = np.full((num_lines * down, self.columns * along, 3), 255, dtype=np.uint8)
        for number, places in enumerate(of_maps):
            row, column = divmod(number, self.columns)
            y, x = row * down, column * along
            atlas[y : y + num_rows, x : x + num_columns] = image(places, self.shading.is_diverging)
        return atlas


CHART_SHAPE = 0.62
"""The height of a chart as a share of its width."""
HANDLE, ENTRY_GAP = 0.32, 0.12
"""The width of a stroke in the legend, and the gap between two entries."""
FEW_PLACES = 10
"""The largest number of points for which every place is labelled."""
MOST_MARKS = 8
STROKES, MARKS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v")


class ChartPanel:
    """Curves, which differ in colour, stroke and mark, or means with standard deviations."""

    fits_single = True

    def __init__(self, part: Curves | Spreads) -> None:
        self.part = part
        self.title = part.title.replace("_", " ")
        self.names: list[str] = []
        if isinstance(part, Spreads):
            self.title = f"mean ± standard deviation of {self.title}"
        elif len(part.curves) > 1:
            self.names = [plain_text(curve.label).replace("_", " ") for curve in part.curves]
        self.legend = f"{self.title}."

    def _entries(self, width: float) -> tuple[list[str], int]:
        """Return the names in the legend and the number of its columns."""
        names = [shortened_to(name, width - HANDLE - 0.1) for name in self.names]
        return names, max(1, int(width / (widest(names) + HANDLE + ENTRY_GAP)))

    def _legend_height(self, width: float) -> float:
        names, columns = self._entries(width)
        return -(-len(names) // columns) * LABEL_SIZE * LINE + (0.06 if names else 0.0)

    def height(self, width: float) -> float:
        """Return the height of the chart and its legend."""
        return CHART_SHAPE * width + self._legend_height(width)

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the legend and, below it, the chart."""
        above = self._legend_height(width)
        down = CHART_SHAPE * width
        axes = axes_at(figure, left + 0.4, top + above, width - 0.45, down - 0.35)
        if isinstance(self.part, Curves):
            self._draw_curves(axes, self.part)
        else:
            _draw_spreads(axes, self.part, width)
        axes.tick_params(axis="y", pad=1.5)
        # The numbers beside the axis decide where it begins.
        figure.draw_without_rendering()
        room = AXIS_NAME + widest([text.get_text() for text in axes.get_yticklabels()]) + TICK
        names_below = max(text.get_text().count("\n") + 1 for text in axes.get_xticklabels())
        below = TICK + names_below * PITCH + (AXIS_NAME if axes.get_xlabel() else 0.0)
        total_width, total_height = figure.get_size_inches()
        size = width - room - TICK, down - below - 0.04
        bottom = total_height - top - above - 0.04 - size[1]
        scaled = size[0] / total_width, size[1] / total_height
        axes.set_position(((left + room) / total_width, bottom / total_height, *scaled))
        y_name, x_name = axes.get_ylabel(), axes.get_xlabel()
        axes.set_ylabel("")
        axes.set_xlabel("")
        middle = {"ha": "center", "va": "center", "rotation": 90}
        y = top + above + 0.04
        write(figure, y_name, left + NAME_SIZE * LINE / 2, y + size[1] / 2, NAME_SIZE, **middle)
        x = left + room + size[0] / 2
        write(figure, x_name, x, y + size[1] + TICK + names_below * PITCH, NAME_SIZE, ha="center")
        if self.names:
            names, columns = self._entries(width)
            for text, line in zip(names, axes.lines, strict=True):
                line.set_label(text)
            self._draw_legend(figure, axes, left, top, width, columns, names)

    def _draw_legend(
        self,
        figure: Figure,
        axes: Axes,
        left: float,
        top: float,
        width: float,
        columns: int,
        names: Sequence[str],
    ) -> None:
        """Draw a stroke and a name for each curve, in columns."""
        entry = widest(names) + HANDLE + ENTRY_GAP
        height = LABEL_SIZE * LINE
        rows = -(-len(names) // columns)
        legend = axes_at(figure, left, top, width, rows * height)
        legend.set_axis_off()
        legend.set_xlim(0, width)
        legend.set_ylim(rows * height, 0)
        for number, (name, line) in enumerate(zip(names, axes.lines, strict=True)):
            row, column = divmod(number, columns)
            x, y = column * entry, (row + 0.5) * height
            (handle,) = legend.plot([x, x + HANDLE / 2, x + HANDLE - 0.04], [y] * 3)
            handle.set(color=line.get_color(), linestyle=line.get_linestyle(), linewidth=line.get_linewidth())
            handle.set(marker=line.get_marker(), markersize=line.get_markersize(), markevery=[1])
            legend.text(x + HANDLE, y, name, va="center", fontsize=LABEL_SIZE)

    def _draw_curves(self, axes: Axes, part: Curves) -> None:
        """Draw the curves; if a table's rows give only a few points, every point is marked."""
        curves = part.curves
        steps = colours(VIRIDIS)[np.linspace(0, 200, max(2, len(curves))).astype(int)] / 255
        strokes = cycle(STROKES)
        marks = cycle(MARKS)
        for (_, x, y), colour, stroke, mark in zip(curves, steps, strokes, marks, strict=False):
            spaced = part.is_of_rows or len(curves) > 1
            every = range(0, len(x) if spaced else 0, max(1, len(x) // MOST_MARKS))
            marked = sorted({*every, *np.flatnonzero(_stand_alone(y)).tolist()})
            axes.plot(x, y, stroke, color=tuple(colour), marker=mark, markevery=marked, markersize=2.5, lw=1)
        axes.set_xlabel(axis_name(part.x_name))
        axes.set_ylabel(with_unit(part.y_name))
        axes.set_ylim(bottom=min([0.0, *(np.nanmin(y) for _, _, y in curves if np.isfinite(y).any())]))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if part.is_of_rows and len(curves[0].x) <= FEW_PLACES:
            axes.set_xticks(_apart(curves[0].x))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=part.is_of_rows and _are_whole(curves[0].x)))
        axes.grid(True, color="0.9", linewidth=0.5)
        axes.set_axisbelow(True)


def with_unit(name: str) -> str:
    """Return the name of numbers with their unit, as in `loss (nats)`."""
    words, unit = name.replace("_", " "), tensor_unit(name, ())
    return words if unit in ("", words) else f"{words} ({unit})"


def _are_whole(numbers: np.ndarray) -> bool:
    return bool((numbers == np.round(numbers)).all())


def _apart(numbers: np.ndarray) -> list[float]:
    """Return the numbers that lie far enough from the one before to be labelled."""
    least = (numbers.max() - numbers.min()) / 12
    shown: list[float] = []
    for number in numbers.tolist():
        if not shown or number - shown[-1] >= least:
            shown.append(number)
    return shown


def _stand_alone(numbers: np.ndarray) -> np.ndarray:
    """Return True for numbers that have no neighbours, which a line would not show."""
    known: np.ndarray = np.pad(np.isfinite(numbers), 1)
    alone: np.ndarray = known[1:-1] & ~known[:-2] & ~known[2:]
    return alone


def _draw_spreads(axes: Axes, part: Spreads, width: float) -> None:
    """Draw a point with a bar on both sides for each mean, numbers below, and lines at -1, 0 and 1."""
    _, names, means, deviations = part
    for end in (-1, 0, 1):
        axes.axhline(end, color="0.75", linewidth=0.8, linestyle="-" if end == 0 else "--")
    colour = tuple(colours(VIRIDIS)[90] / 255)
    places = range(len(names))
    axes.errorbar(places, means, deviations, fmt="o", color=colour, markersize=3, capsize=4, lw=1)
    numbers = zip(names, means, deviations, strict=True)
    texts = [f"{fixed(mean, 2)}\n± {fixed(deviation, 2)}" for _, mean, deviation in numbers]
    room = (width - 0.5) / len(names) - 0.04
    wrapped = [name.replace(" ", "\n") if text_width(name) > room else name for name in names]
    lines = max(name.count("\n") for name in wrapped)
    axes.set_xticks(
        places,
        [
            f"{name}{chr(10) * (lines - name.count(chr(10)))}\n{text}"
            for name, text in zip(wrapped, texts, strict=True)
        ],
    )
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylabel("mean ± standard deviation")
