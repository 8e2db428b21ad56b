"""The charts of a picture."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attncli.views.colormaps import VIRIDIS, colours
from attncli.views.curves import Curves
from attncli.views.pictures.places import TITLE_HEIGHT, axes_at

CHART_WIDTH, CHART_HEIGHT = 4.2, 3.0


class ChartBlock:
    """Curves over a common axis; the points of a table's rows are few, so each is marked."""

    def __init__(self, curves: Curves) -> None:
        self.curves = curves
        self.width, self.height = CHART_WIDTH + 0.5, CHART_HEIGHT + TITLE_HEIGHT + 0.45

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """The curves, with a legend where there are several."""
        title, x_name, curves, is_marked = self.curves
        axes = axes_at(figure, left + 0.5, top + TITLE_HEIGHT, CHART_WIDTH, CHART_HEIGHT)
        axes.set_title(title, loc="left", pad=3)
        steps = colours(VIRIDIS)[np.linspace(0, 215, max(2, len(curves))).astype(int)] / 255
        for (label, x, y), colour in zip(curves, steps, strict=False):
            marker = "o" if is_marked else None
            axes.plot(x, y, color=tuple(colour), label=label, marker=marker, markersize=3, lw=1.2)
        axes.set_xlabel(x_name)
        axes.set_ylim(bottom=0)
        if is_marked:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(True, color="0.9", linewidth=0.5)
        axes.set_axisbelow(True)
        if len(curves) > 1:
            axes.legend(frameon=False)
