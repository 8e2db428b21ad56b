"""Where things stand in a picture, in inches."""

from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure


class Block(Protocol):
    """Something of a known size that draws itself at a place, from the figure's upper left corner."""

    width: float
    height: float

    def draw(self, figure: Figure, left: float, top: float) -> None:
        """Draw on the figure."""


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    return figure.add_axes(
        (left / total_width, bottom / total_height, width / total_width, height / total_height)
    )
