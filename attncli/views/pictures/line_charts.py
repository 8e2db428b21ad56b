"""The charts of a picture."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attncli.views.colormaps import VIRIDIS, colours
from attncli.views.pictures.parts import Lines
from attncli.views.pictures.place import axes_at
from attncli.views.pictures.ticks import TITLE_HEIGHT

CHART_WIDTH, CHART_HEIGHT = 4.2, 3.0


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
