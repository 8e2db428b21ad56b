"""A report as a PNG, SVG or PDF picture, drawn by matplotlib and sized to fit its numbers."""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import IO, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import MaxNLocator
from rich.cells import cell_len

from attncli.core.process import quiet_warnings
from attncli.records.report import PLACES, NamedTensor, PictureMaps, Report, Table
from attncli.system.plain_text import plain_text
from attncli.views import Display, NothingToDraw, Write
from attncli.views.arrangement import NARROWEST, DrawnBlock, arranged
from attncli.views.canvas import (
    BAR_GAP,
    BAR_LABELS,
    BAR_WIDTH,
    DOTS_PER_INCH,
    LABEL_HEIGHT,
    TITLE_CHARACTER,
    TITLE_HEIGHT,
    axes_at,
    draw_bar,
    draw_image,
    draw_numbers,
    image,
    labels,
    longest,
    set_labels,
)
from attncli.views.colours import VIRIDIS, colours, shading
from attncli.views.matrices import (
    ATTENTION_AXES,
    Curves,
    Matrix,
    Spreads,
    axes_in_words,
    chosen_parts,
    colour_scale,
    compared_names,
    in_words,
    place_names,
    report_curves,
    tensor_matrices,
    tensor_unit,
)
from attncli.views.overlay_blocks import OverlayBlock, PictureMapsBlock
from attncli.views.overlays import Overlays, report_overlays
from attncli.views.tables import first_screen
from attncli.views.texts import (
    LabelledAxis,
    fixed,
    labelled_axes,
    nothing_to_draw,
    shortened_text,
    subtitle,
    title_lines,
    wrap_cells,
)


def cells_of(width: float, size: float) -> int:
    """Return the number of cells of that font size in that many inches."""
    return max(20, int(width / (TITLE_CHARACTER * size / 9)))


def fitted_lines(text: str, cells: int, most: int) -> list[str]:
    """Wrap a string to that many lines and cells; the last line is shortened."""
    lines = wrap_cells(text, cells)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shortened_text(" ".join(lines[most - 1 :]), cells)]


MOST_MATRICES = 1600
SETTINGS = ("row", "column")  # the axes of means by two settings of a store
# The names of a comparison's tensors.
NAMES = {
    "weights_a": "weights of A",
    "weights_b": "weights of B",
    "difference": "weights of B minus those of A",
}


class Maps(NamedTuple):
    """The first matrices of one tensor, out of `total`; the tensors in `compared` share its colours."""

    name: str
    columns: LabelledAxis
    matrices: list[Matrix]
    total: int
    compared: list[np.ndarray]


PicturePart = Maps | Curves | Spreads | Overlays | PictureMaps | DrawnBlock


def parts_of(report: Report, show: tuple[str, ...] = ()) -> Iterator[list[PicturePart]]:
    """Yield the parts of a report's picture, each as a list of what belongs together.

    A first screen's own picture stands alone. Otherwise, the parts are the looks at pictures or, without any,
    the maps (compared maps together) or the grids of head statistics; then the curves, and the figures of the
    first screen. With `show`, only the requested parts are included.
    """
    chosen = chosen_parts(report, show or ("all",))
    screen = first_screen(report.result)
    if screen is not None and (drawn := screen.picture(report, chosen.statistics)):
        yield [drawn]
        return
    if overlays := list(report_overlays(chosen)):
        for each in overlays:
            yield [each]
        return
    if chosen.picture_maps is not None:
        yield [chosen.picture_maps]
        return
    maps = {name: tensor for name, tensor in chosen.tensors.items() if _is_drawn(name, tensor, chosen)}
    maps = maps or dict(_head_statistic_grids(chosen.table("heads")))
    while maps:
        first = next(iter(maps))
        names = [first, *(other for other in compared_names(report, first) if other in maps)]
        yield [_maps(report, name, maps) for name in names]
        maps = {name: tensor for name, tensor in maps.items() if name not in names}
    for curves in report_curves(chosen):
        yield [curves]
    if screen is not None:
        for figure in screen.figures(report, chosen.statistics):
            yield [figure]


def _maps(report: Report, name: str, drawn: Mapping[str, NamedTensor]) -> Maps:
    tensor = drawn[name]
    if tensor.axes[0] == "step":
        *_, last = tensor_matrices(report, name, tensor)
        return Maps(name.replace("_", " "), labelled_axes(report, last)[1], [last], 1, [])
    matrices = list(islice(tensor_matrices(report, name, tensor), MOST_MATRICES))
    total = 1 if matrices[0].shared else int(np.prod(tensor.values.shape[:-2]))
    compared = [drawn[other].values for other in compared_names(report, name) if other in drawn]
    _, columns = labelled_axes(report, matrices[0])
    return Maps(NAMES.get(name, name.replace("_", " ")), columns, matrices, total, compared)


def _is_drawn(name: str, tensor: NamedTensor, report: Report) -> bool:
    """Return True for a map, an output or a compared tensor; with many heads, only for the weights."""
    if tensor.axes[-2:] in (*ATTENTION_AXES, PLACES, SETTINGS):
        return len(tensor.axes) == 2 or not name.endswith("scores") or "weights" not in report.tensors
    return len(tensor.axes) == 2 and (name == "output" or bool(compared_names(report, name)))


def _head_statistic_grids(heads: Table) -> Iterator[tuple[str, NamedTensor]]:
    """Return each statistic by layer and head, with one grid per stack of the model."""
    for name, cell in heads[0].items() if heads else ():
        if isinstance(cell, float) or cell is None:
            for stack, grid in heads.grids(name).items():
                if not np.isnan(grid.values).all():
                    yield f"{name} {stack}".strip(), grid


LARGEST_CELL, LARGEST_CELL_ALONE, LEAST_MAP, LEAST_SHAPE = 0.36, 0.5, 0.4, 0.3
STRETCH = 2.5
"""How much wider or taller than usual a block may become to fill empty space."""
# The size of a panel by the number of panels: few are for reading, many for comparing.
PANEL_SIZES = {1: 4.2, 4: 2.6, 9: 2.1, 16: 1.7}
SMALLEST_PANEL, LARGEST_PANEL, WIDEST_ATLAS, TALLEST_ATLAS = 0.25, 1.1, 13.0, 16.0
FOLD_GAP = 0.15


class MapsBlock:
    """One matrix with its tokens, a grid of matrices that share their tokens, or an atlas of many."""

    def __init__(self, maps: Maps, display: Display) -> None:
        self.maps, self.matrices = maps, maps.matrices
        first = self.matrices[0]
        self.shading = shading(
            np.stack([matrix.drawn for matrix in self.matrices]),
            colour_scale(display.scale_colors, first.axes),
            skip_keys=maps.columns.skipped(display.skip_first_keys),
            from_zero=first.is_weights,
            compared=maps.compared,
        )
        self.precision = display.screen_precision
        self.columns, rows = self._grid()
        self.is_atlas = len(self.matrices) > max(PANEL_SIZES)
        # If there are many more layers than heads, the later layers stand to the right of the first ones.
        self.folds = max(1, round(np.sqrt(rows / self.columns))) if self.is_atlas else 1
        self.rows = -(-rows // self.folds)
        self.row_labels, self.column_labels = self._axis_labels(first)
        self.panel_width, self.panel_height = self._panel(first)
        self.gap = 0.0 if self.is_atlas else 0.12
        self.panel_title = TITLE_HEIGHT if len(self.matrices) > 1 and not self.is_atlas else 0.0
        self.left = longest(self.row_labels) + (0.0 if self.is_atlas else 0.15)
        self.above = TITLE_HEIGHT * (2 if self.is_atlas else 1)
        self.below = LABEL_HEIGHT if self.is_atlas else longest(self.column_labels) + 0.15
        self._measure()

    def _measure(self) -> None:
        """Return the size of all panels and their labels, given the size of one panel."""
        self.fold_width = self.columns * (self.panel_width + self.gap) - self.gap + self.left + FOLD_GAP
        self.across = self.folds * self.fold_width - self.left - FOLD_GAP
        map_width = self.left + self.across + BAR_GAP + BAR_WIDTH + BAR_LABELS
        self.width = max(map_width, TITLE_CHARACTER * cell_len(self.title))
        self.grid_height = self.rows * (self.panel_height + self.gap + self.panel_title) - self.gap
        self.height = self.above + self.grid_height + self.below

    @property
    def largest(self) -> tuple[float, float]:
        """The largest size; a single map of vectors can be stretched: its sides count different things."""
        if len(self.matrices) > 1 or self.matrices[0].axes[1] != "dim":
            return self.width, self.height
        return STRETCH * self.width, STRETCH * self.height

    def stretch(self, width: float, height: float) -> None:
        """Take the given width and height."""
        self.panel_width += width - self.width
        self.panel_height += height - self.height
        self._measure()

    @property
    def title(self) -> str:
        """The title of all panels, with the number of panels left out."""
        first, count, total = self.matrices[0], len(self.matrices), self.maps.total
        if count == 1:
            return replace(first, name=self.maps.name).title.replace("_", " ")
        part = f": the first {count} of {total}" if total > count else ""
        return f"{in_words(self.maps.name)} ({axes_in_words(first.axes)}){part}".replace("_", " ")

    @property
    def unit(self) -> str:
        """The unit of the numbers, which the colour bar shows."""
        return tensor_unit(self.matrices[0].name, self.matrices[0].axes)

    def _grid(self) -> tuple[int, int]:
        """Return the columns and rows: if there are several leading axes, the last gives the columns."""
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
            return place_names(matrix.place[0] for matrix in leftmost), [f"+{i}" for i in range(self.columns)]
        rows = [", ".join(place_names(matrix.place[:-1])) for matrix in leftmost]
        return rows, [str(column) for column in range(self.columns)]

    def _panel(self, first: Matrix) -> tuple[float, float]:
        """Return the width and height of a panel."""
        num_rows, num_columns = first.values.shape
        most = max(num_rows, num_columns)
        if self.is_atlas:
            size = min(LARGEST_PANEL, WIDEST_ATLAS / (self.columns * self.folds), TALLEST_ATLAS / self.rows)
            size = max(size, SMALLEST_PANEL)
            return size * max(0.2, num_columns / most), size * max(0.2, num_rows / most)
        size = next(size for count, size in PANEL_SIZES.items() if len(self.matrices) <= count)
        is_of_vectors = first.axes[1] == "dim"
        largest = LARGEST_CELL if len(self.matrices) > 1 else LARGEST_CELL_ALONE
        cell = min(largest, size / (num_rows if is_of_vectors else most))
        # If keys are few and queries many, or the reverse, the short side is stretched.
        width, height = (
            max(LEAST_MAP, cell * count, min(largest * count, LEAST_SHAPE * cell * most))
            for count in (num_columns, num_rows)
        )
        if is_of_vectors:
            width = min(size, largest * num_columns)
        if len(self.matrices) > 1:
            titles = (cell_len(_panel_name(matrix)) for matrix in self.matrices)
            width = max(width, TITLE_CHARACTER * max(titles))
        return width, height

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the title, the panels and, beside them, the colour bar at that position in inches."""
        total_width, total_height = figure.get_size_inches()
        figure.text(left / total_width, 1 - top / total_height, self.title, va="top", fontsize=8)
        left, top = left + self.left, top + self.above
        draw = self._draw_atlas if self.is_atlas else self._draw_panels
        draw(figure, left, top)
        bar_height = max(0.8, min(self.grid_height, 3.0)) if self.rows > 1 else self.panel_height
        place = (left + self.across + BAR_GAP, top + self.panel_title, BAR_WIDTH, bar_height)
        draw_bar(figure, self.shading, self.unit, place)

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
                axes.set_title(_panel_name(matrix), loc="left", pad=3)
            is_lowest = number + self.columns >= num_panels
            set_labels(axes.yaxis, matrix.axes[0], self.row_labels if column == 0 else [], self.panel_height)
            set_labels(axes.xaxis, matrix.axes[1], self.column_labels if is_lowest else [], self.panel_width)
            axes.tick_params(axis="x", labelrotation=90)

    def _draw_atlas(self, figure: Figure, left: float, top: float) -> None:
        """Draw all matrices as one image per fold, separated by a margin."""
        for fold in range(self.folds):
            first, end = fold * self.rows, (fold + 1) * self.rows
            places = self.shading.places[first * self.columns : end * self.columns]
            self._draw_fold(figure, left + fold * self.fold_width, top, places, self.row_labels[first:end])

    def _draw_fold(
        self, figure: Figure, left: float, top: float, of_maps: np.ndarray, row_labels: list[str]
    ) -> None:
        _, num_rows, num_columns = of_maps.shape
        margin = max(1, round(0.06 * max(num_rows, num_columns)))
        down, along = num_rows + margin, num_columns + margin
        atlas = np.full((len(row_labels) * down, self.columns * along, 3), 255, dtype=np.uint8)
        for number, places in enumerate(of_maps):
            row, column = divmod(number, self.columns)
            y, x = row * down, column * along
            atlas[y : y + num_rows, x : x + num_columns] = image(places, self.shading.is_diverging)
        width = self.fold_width - self.left - FOLD_GAP
        axes = axes_at(figure, left, top, width, len(row_labels) * self.panel_height)
        draw_image(axes, atlas, is_fine=num_rows > 150 * self.panel_height)
        axes.spines[:].set_visible(False)
        axes.set_yticks(np.arange(len(row_labels)) * down + (num_rows - 1) / 2, row_labels)
        columns = np.arange(self.columns) * along + (num_columns - 1) / 2
        axes.set_xticks(columns, self.column_labels)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)


def _panel_name(matrix: Matrix) -> str:
    """Return the title of one of several panels, like `head 3`."""
    return ", ".join(place_names(matrix.place))


CHART_WIDTH, CHART_HEIGHT = 4.2, 3.0


class ChartBlock:
    """A chart of curves, or of means with standard deviations; all charts have the same initial size."""

    def __init__(self, part: Curves | Spreads) -> None:
        self.part = part
        title = f"mean ± standard deviation of {part.title}" if isinstance(part, Spreads) else part.title
        self.width = max(CHART_WIDTH, TITLE_CHARACTER * cell_len(title)) + 0.5
        self.height = CHART_HEIGHT + TITLE_HEIGHT + 0.45
        self.largest = STRETCH * self.width, STRETCH * self.height

    def stretch(self, width: float, height: float) -> None:
        """Take the given width and height."""
        self.width, self.height = width, height

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw the chart with its upper left corner at that position in inches."""
        axes = axes_at(
            figure, left + 0.5, top + TITLE_HEIGHT, self.width - 0.5, self.height - TITLE_HEIGHT - 0.45
        )
        if isinstance(self.part, Curves):
            _draw_curves(axes, self.part)
        else:
            _draw_spreads(axes, self.part)


FEW_PLACES = 10
"""The largest number of points for which every place is labelled."""
MOST_COLOURS = 6
"""Any further curves also differ in their strokes."""


def _draw_curves(axes: Axes, part: Curves) -> None:
    """Draw the curves over a common axis; if a table's rows give only a few points, the points are marked."""
    title, x_name, curves, is_marked = part
    axes.set_title(title.replace("_", " "), loc="left", pad=3)
    steps = colours(VIRIDIS)[np.linspace(0, 215, max(2, len(curves))).astype(int)] / 255
    styles = cycle(("-",) if len(curves) <= MOST_COLOURS else ("-", "--", ":"))
    for (label, x, y), colour, style in zip(curves, steps, styles, strict=False):
        marked = slice(None) if is_marked else np.flatnonzero(_stand_alone(y)).tolist()
        axes.plot(
            x, y, style, color=tuple(colour), label=label, marker="o", markevery=marked, markersize=3, lw=1.2
        )
    axes.set_xlabel(x_name.replace("_", " "))
    axes.set_ylim(bottom=min([0.0, *(np.nanmin(y) for _, _, y in curves if np.isfinite(y).any())]))
    if is_marked and len(curves[0].x) <= FEW_PLACES:
        axes.set_xticks(curves[0].x)
    elif is_marked:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    if len(curves) > 1:
        axes.legend(frameon=False)


def _stand_alone(numbers: np.ndarray) -> np.ndarray:
    """Return True for numbers that have no neighbours, which a line would not show."""
    known: np.ndarray = np.pad(np.isfinite(numbers), 1)
    alone: np.ndarray = known[1:-1] & ~known[:-2] & ~known[2:]
    return alone


def _draw_spreads(axes: Axes, part: Spreads) -> None:
    """Draw a point with a bar on both sides for each mean, numbers below, and lines at -1, 0 and 1."""
    title, names, means, deviations = part
    axes.set_title(f"mean ± standard deviation of {title}", loc="left", pad=3)
    for end in (-1, 0, 1):
        axes.axhline(end, color="0.75", linewidth=0.8, linestyle="-" if end == 0 else "--")
    colour = tuple(colours(VIRIDIS)[90] / 255)
    places = range(len(names))
    axes.errorbar(places, means, deviations, fmt="o", color=colour, markersize=4, capsize=6, lw=1.5)
    numbers = zip(names, means, deviations, strict=True)
    texts = [f"{name}\n{fixed(mean, 2)} ± {fixed(deviation, 2)}" for name, mean, deviation in numbers]
    axes.set_xticks(places, texts)
    axes.set_xlim(-0.5, len(names) - 0.5)


GAP, MARGIN = 0.25, 0.15
# The title and the settings below it: points per character, inches per line, and the most lines.
TITLE_SIZE, TITLE_LINE, TITLE_LINES = 12, 0.24, 3
SETTINGS_SIZE, SETTINGS_LINE, SETTINGS_LINES = 7.5, 0.15, 3
MOST_PARTS = 60
# Fonts with characters that DejaVu lacks; the installed fonts are tried in this order.
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Segoe UI Emoji", "Symbola",
)  # fmt: skip


def settings() -> Any:
    """Reset matplotlib to its defaults, so that pictures look the same for every user."""
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    installed = set(fontManager.get_font_names())
    return {
        **defaults,
        "text.parse_math": False,
        "text.usetex": False,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # TrueType, so that text can be searched and copied
        "svg.hashsalt": "attn",
        "font.family": ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)],
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.linewidth": 0.5,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "xtick.major.size": 2,
        "ytick.major.size": 2,
    }


def block_of(part: PicturePart, display: Display) -> DrawnBlock:
    """Return the block that draws a part."""
    if isinstance(part, Overlays):
        return OverlayBlock(part, display)
    if isinstance(part, PictureMaps):
        return PictureMapsBlock(part, display)
    if isinstance(part, Maps):
        return MapsBlock(part, display)
    return ChartBlock(part) if isinstance(part, Curves | Spreads) else part


def title_and_settings(report: Report, display: Display, width: float) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the settings for that many inches; none if --title is empty."""
    cells = cells_of(width, TITLE_SIZE)
    if display.title is None:
        of_title = title_lines(report, cells)
    elif own := plain_text(display.title).strip():
        of_title = fitted_lines(own, cells, TITLE_LINES)
    else:
        return [], []
    settings = [subtitle(report)]
    if report.result.explains_figure:
        settings.append(plain_text(report.how_to_read))
    lines = (fitted_lines(text, cells_of(width, SETTINGS_SIZE), SETTINGS_LINES) for text in settings)
    return of_title, [*chain.from_iterable(lines)]


def draw(report: Report, display: Display) -> Figure:
    """Draw the figure of a report: title, settings and parts. Raises NothingToDraw if there are no parts."""
    parts = islice(parts_of(report, display.show), MOST_PARTS)
    groups = [[block_of(part, display) for part in group] for group in parts]
    if not groups:
        raise NothingToDraw(nothing_to_draw(report))
    blocks = arranged(groups)
    width = max(NARROWEST, blocks.width) + 2 * MARGIN
    of_title, settings_lines = title_and_settings(report, display, width - 2 * MARGIN)
    below_title = MARGIN + TITLE_LINE * len(of_title)
    top = below_title + SETTINGS_LINE * len(settings_lines) + (GAP if of_title else 0)
    height = top + blocks.height + MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    for lines, above, style in (
        (of_title, MARGIN, {"fontsize": TITLE_SIZE}),
        (settings_lines, below_title, {"fontsize": SETTINGS_SIZE, "color": "0.4"}),
    ):
        if lines:
            figure.text(MARGIN / width, 1 - above / height, "\n".join(lines), va="top", ha="left", **style)
    for block, left, above in blocks.placed:
        block.draw(figure, (width - blocks.width) / 2 + left, top + above)
    return figure


def writer(kind: str, metadata: Mapping[str, str | None]) -> Write:
    """Return a view that writes one picture per report; equal reports produce equal bytes."""

    def write(reports: Iterable[Report], stream: IO[Any], display: Display) -> None:
        """Write the picture; a character that no font has becomes an empty box, without a warning."""
        for report in reports:
            with quiet_warnings(), matplotlib.rc_context():
                matplotlib.rcParams.update(settings())
                figure = draw(report, display)
                # Draw in memory first, because matplotlib's writers fail badly if a disk is full.
                picture: io.StringIO | io.BytesIO = io.StringIO() if kind == "svg" else io.BytesIO()
                figure.savefig(picture, format=kind, metadata=dict(metadata), dpi=DOTS_PER_INCH)
            stream.write(picture.getvalue())

    return write


write_png = writer("png", {"Software": None})


write_svg = writer("svg", {"Date": None, "Creator": None})


write_pdf = writer("pdf", {"CreationDate": None, "Creator": None, "Producer": None})
