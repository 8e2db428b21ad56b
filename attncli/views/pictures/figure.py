"""A report as one matplotlib figure: its parts in rows, each as large as its numbers need.

No pyplot, so no window and no global figure. Texts are never parsed as mathematics.
"""

from itertools import islice
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from attncli.report import Report
from attncli.views import Display
from attncli.views.curves import Curves
from attncli.views.heading import heading
from attncli.views.pictures.line_charts import ChartBlock
from attncli.views.pictures.maps import MapsBlock
from attncli.views.pictures.parts import Maps, parts_of
from attncli.views.pictures.places import heading_lines

WIDEST = 15.0  # inches, from which on parts go to the next row
NARROWEST = 4.0
GAP, MARGIN, LINE = 0.25, 0.15, 0.17
MOST_PARTS = 60
# Fonts that have what DejaVu lacks; those that are installed are asked in this order.
FALLBACKS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "PingFang SC", "Hiragino Sans",
    "Microsoft YaHei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Emoji", "Segoe UI Emoji", "Symbola",
)  # fmt: skip


def settings() -> Any:
    """What makes the same picture everywhere: matplotlib's own defaults, whatever a user's file says."""
    installed = set(fontManager.get_font_names())
    return {
        **{
            name: matplotlib.rcParamsDefault[name] for name in matplotlib.rcParamsDefault if name != "backend"
        },
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


def _block(part: Maps | Curves, display: Display) -> Block:
    return MapsBlock(part, display) if isinstance(part, Maps) else ChartBlock(part)


def _rows(blocks: list[Block]) -> list[list[Block]]:
    """The blocks from left to right, and on in the next row where they would be too wide."""
    rows: list[list[Block]] = []
    width = 0.0
    for block in blocks:
        if not rows or width + GAP + block.width > WIDEST:
            rows.append([])
            width = 0.0
        rows[-1].append(block)
        width += GAP + block.width
    return rows


def draw(report: Report, display: Display) -> Figure:
    """The figure of a report: its heading, then its parts."""
    rows = _rows([_block(part, display) for part in islice(parts_of(report), MOST_PARTS)])
    width = max([NARROWEST, *(sum(GAP + block.width for block in row) - GAP for row in rows)]) + 2 * MARGIN
    title = heading_lines(heading(report), width - 2 * MARGIN)
    heights = [max(block.height for block in row) for row in rows]
    height = sum(heights) + GAP * len(rows) + LINE * len(title) + 2 * MARGIN
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    figure.text(MARGIN / width, 1 - MARGIN / height, "\n".join(title), va="top", ha="left", fontsize=9)
    top = MARGIN + LINE * len(title) + GAP
    for row, row_height in zip(rows, heights, strict=True):
        left = MARGIN
        for block in row:
            block.draw(figure, left, top)
            left += block.width + GAP
        top += row_height + GAP
    return figure
