"""Numbers as the colours of a picture, and the bar that says which colour is which number."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attncli.views.colormaps import Shading, colour_map
from attncli.views.pictures.places import axes_at

NO_NUMBER = (237, 237, 237)


def image(shades: np.ndarray, is_diverging: bool) -> np.ndarray:
    """Red, green and blue, from 0 to 255, of places on the map; grey for no number."""
    table = np.concatenate([colour_map(is_diverging), [NO_NUMBER]]).astype(np.uint8)
    is_number = ~np.isnan(shades)
    levels = np.multiply(shades, 255, where=is_number, out=np.full(shades.shape, 256.0))
    rgb: np.ndarray = table[levels.round().astype(np.int16)]
    return rgb


def draw_image(axes: Axes, shades: np.ndarray, is_diverging: bool, dots: float) -> None:
    """One colour an entry; entries smaller than a dot are averaged."""
    is_fine = max(shades.shape) > dots
    axes.imshow(
        image(shades, is_diverging), aspect="auto", interpolation="antialiased" if is_fine else "nearest"
    )


def draw_bar(figure: Figure, shade: Shading, place: tuple[float, float, float, float]) -> None:
    """Which colour is which number; nothing where there is no number."""
    if np.isnan(shade.low):
        return
    low, high = shade.low, shade.high
    if low == high:  # every number is the same: it has the colour of the end away from zero
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    is_log = shade.scale == "log" and shade.low < shade.high
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    colours = ListedColormap(colour_map(shade.is_diverging) / 255)
    axes = axes_at(figure, *place)
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes, format=FuncFormatter(_bar_number))
    bar.ax.minorticks_off()
    if shade.scale == "row":
        ends = ("-largest", "largest") if shade.is_diverging else ("least", "most")
        bar.set_ticks([low, high], labels=[f"{end}\nof a row" for end in ends])


def _bar_number(value: float, place: int | None) -> str:
    return f"{value:.4g}"
