"""A report as a PNG or SVG picture, drawn by matplotlib, as large as its numbers need."""

import logging
import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import MaxNLocator

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import Display, NothingToDraw, Write
from attncli.views.colours import VIRIDIS, colours
from attncli.views.matrices import Curves
from attncli.views.picture_maps import TITLE_HEIGHT, Maps, MapsBlock, Spreads, axes_at, fitted_lines, parts_of
from attncli.views.texts import fixed, nothing_to_draw, subtitle, title

CHART_WIDTH, CHART_HEIGHT = 4.2, 3.0


class ChartBlock:
    """A chart of curves, or of means with their standard deviations; all charts have one size."""

    width, height = CHART_WIDTH + 0.5, CHART_HEIGHT + TITLE_HEIGHT + 0.45

    def __init__(self, part: Curves | Spreads) -> None:
        self.part = part

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """The chart, its upper left corner at that place in inches."""
        axes = axes_at(figure, left + 0.5, top + TITLE_HEIGHT, CHART_WIDTH, CHART_HEIGHT)
        if isinstance(self.part, Curves):
            _draw_curves(axes, self.part)
        else:
            _draw_spreads(axes, self.part)


def _draw_curves(axes: Axes, part: Curves) -> None:
    """Curves over a common axis; the points of a table's rows are few, so each is marked."""
    title, x_name, curves, is_marked = part
    axes.set_title(title.replace("_", " "), loc="left", pad=3)
    steps = colours(VIRIDIS)[np.linspace(0, 215, max(2, len(curves))).astype(int)] / 255
    for (label, x, y), colour in zip(curves, steps, strict=False):
        marker = "o" if is_marked else None
        axes.plot(x, y, color=tuple(colour), label=label, marker=marker, markersize=3, lw=1.2)
    axes.set_xlabel(x_name.replace("_", " "))
    axes.set_ylim(bottom=0)
    if is_marked:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    if len(curves) > 1:
        axes.legend(frameon=False)


def _draw_spreads(axes: Axes, part: Spreads) -> None:
    """A point at each mean with a bar to both sides, and the numbers below; lines at -1, 0 and 1."""
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


WIDEST = 15.0  # inches, from which on parts go to the next row
NARROWEST = 4.0
GAP, MARGIN = 0.25, 0.15
# Points of a character, inches of a line, and the most lines, of the title and of the settings below it.
TITLE_SIZE, TITLE_LINE, TITLE_LINES = 12, 0.24, 2
SETTINGS_SIZE, SETTINGS_LINE, SETTINGS_LINES = 7.5, 0.15, 3
MOST_PARTS = 60
# Fonts that have what DejaVu lacks; those installed are tried in this order.
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Segoe UI Emoji", "Symbola",
)  # fmt: skip


def settings() -> Any:
    """What makes the same picture everywhere: matplotlib's own defaults, whatever a user's file says."""
    defaults = {name: value for name, value in matplotlib.rcParamsDefault.items() if name != "backend"}
    installed = set(fontManager.get_font_names())
    return {
        **defaults,
        "text.parse_math": False,
        "text.usetex": False,
        "svg.fonttype": "none",
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


Block = MapsBlock | ChartBlock


def _rows(groups: Iterable[list[Block]]) -> list[list[Block]]:
    """The blocks from left to right; in a new row where a block, or its whole group, does not fit."""
    rows: list[list[Block]] = []
    width = WIDEST
    for group in groups:
        together = sum(GAP + block.width for block in group)
        for number, block in enumerate(group):
            if width + GAP + block.width > WIDEST or (not number and width + together > WIDEST):
                rows.append([])
                width = 0.0
            rows[-1].append(block)
            width += GAP + block.width
    return rows


def draw(report: Report, display: Display) -> Figure:
    """The figure of a report: its title and settings, then its parts; NothingToDraw where it has none."""
    rows = _rows(
        [MapsBlock(part, display) if isinstance(part, Maps) else ChartBlock(part) for part in group]
        for group in islice(parts_of(report), MOST_PARTS)
    )
    if not rows:
        raise NothingToDraw(nothing_to_draw(report))
    width = max([NARROWEST, *(sum(GAP + block.width for block in row) - GAP for row in rows)]) + 2 * MARGIN
    own_title = title(report) if display.title is None else plain_text(display.title)
    title_lines = fitted_lines(own_title, width - 2 * MARGIN, TITLE_SIZE, TITLE_LINES)
    settings_lines = fitted_lines(subtitle(report), width - 2 * MARGIN, SETTINGS_SIZE, SETTINGS_LINES)
    heights = [max(block.height for block in row) for row in rows]
    below_title = MARGIN + TITLE_LINE * len(title_lines)
    top = below_title + SETTINGS_LINE * len(settings_lines) + GAP
    height = top + sum(heights) + GAP * (len(rows) - 1) + MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    for lines, above, style in (
        (title_lines, MARGIN, {"fontsize": TITLE_SIZE}),
        (settings_lines, below_title, {"fontsize": SETTINGS_SIZE, "color": "0.4"}),
    ):
        figure.text(MARGIN / width, 1 - above / height, "\n".join(lines), va="top", ha="left", **style)
    for row, row_height in zip(rows, heights, strict=True):
        left = MARGIN
        for block in row:
            block.draw(figure, left, top)
            left += block.width + GAP
        top += row_height + GAP
    return figure


DOTS_PER_INCH = 150


def writer(kind: str, metadata: Mapping[str, str | None]) -> Write:
    """A view that writes one picture per report; the same report gives the same bytes."""

    def write(reports: Iterable[Report], stream: IO[Any], display: Display) -> None:
        """A character that no font has is an empty box, without a warning."""
        # Before the import: matplotlib logs about its caches and fonts.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        import matplotlib

        for report in reports:
            with matplotlib.rc_context(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matplotlib.rcParams.update(settings())
                figure = draw(report, display)
                figure.savefig(stream, format=kind, metadata=dict(metadata), dpi=DOTS_PER_INCH)

    return write


write_png = writer("png", {"Software": None})


write_svg = writer("svg", {"Date": None, "Creator": None})
