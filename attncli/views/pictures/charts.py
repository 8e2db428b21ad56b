"""The charts of a picture."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attncli.views.colormaps import VIRIDIS, colours
from attncli.views.curves import Curves
from attncli.views.numbers import fixed
from attncli.views.pictures.parts import Spreads
from attncli.views.pictures.places import TITLE_HEIGHT, axes_at

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
