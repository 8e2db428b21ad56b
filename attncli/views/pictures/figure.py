"""A report as one matplotlib figure: title, settings, and its parts in rows, as large as their numbers need.

Without pyplot, so there is no window and no global figure. Texts are never parsed as mathematics.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import Display, NothingToDraw
from attncli.views.heading import nothing_to_draw, subtitle, title
from attncli.views.pictures.charts import ChartBlock
from attncli.views.pictures.maps import MapsBlock
from attncli.views.pictures.parts import Maps, parts_of
from attncli.views.pictures.places import fitted_lines

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
