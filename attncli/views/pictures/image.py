"""Numbers as the colours of a picture, and the bar that says which colour is which number."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from attncli.views.colormaps import Shading, colour_map
from attncli.views.matrices import Matrix
from attncli.views.numbers import fixed
from attncli.views.pictures.places import axes_at

NO_NUMBER = (190, 190, 190)
# Inches that a character of a number in a cell takes, and what a cell needs beside and above it.
NUMBER_SIZE, NUMBER_CHARACTER, NUMBER_GAP, NUMBER_HEIGHT = 6, 0.053, 0.03, 0.12
# How light red, green and blue are; above it black is easier to read than white.
LUMINANCE, LIGHT = np.array([0.299, 0.587, 0.114]), 140
MOST_DECADES = 5


def image(shades: np.ndarray, is_diverging: bool) -> np.ndarray:
    """Red, green and blue, from 0 to 255, of places on the map; grey for no number."""
    table = np.concatenate([colour_map(is_diverging), [NO_NUMBER]]).astype(np.uint8)
    is_number = ~np.isnan(shades)
    levels = np.multiply(shades, 255, where=is_number, out=np.full(shades.shape, 256.0))
    rgb: np.ndarray = table[levels.round().astype(np.int16)]
    return rgb


def draw_image(axes: Axes, rgb: np.ndarray, dots: float) -> None:
    """One colour an entry; entries smaller than a dot are averaged."""
    is_fine = max(rgb.shape) > dots
    axes.imshow(rgb, aspect="auto", interpolation="antialiased" if is_fine else "nearest")


def draw_numbers(
    axes: Axes, matrix: Matrix, rgb: np.ndarray, size: tuple[float, float], precision: int
) -> None:
    """The number in each cell, black or white, of a map of that width and height if all of them fit."""
    num_rows, num_columns = matrix.values.shape
    room = size[0] / num_columns - NUMBER_GAP, size[1] / num_rows
    if room[0] < NUMBER_CHARACTER or room[1] < NUMBER_HEIGHT:
        return
    texts = [[fixed(number, precision) for number in row] for row in matrix.drawn]
    if max(len(text) for row in texts for text in row) * NUMBER_CHARACTER > room[0]:
        return
    is_light = rgb @ LUMINANCE > LIGHT
    for (i, j), colour in np.ndenumerate(np.where(is_light, "black", "white")):
        axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=NUMBER_SIZE, color=str(colour))


def draw_bar(figure: Figure, shade: Shading, place: tuple[float, float, float, float]) -> None:
    """Which colour is which number; nothing where there is no number."""
    if np.isnan(shade.low):
        return
    low, high = shade.low, shade.high
    if low == high:  # every number is the same: it has the colour of the end away from zero
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    is_log = shade.scale == "log" and low > 0
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    colours = ListedColormap(colour_map(shade.is_diverging) / 255)
    axes = axes_at(figure, *place)
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes, format=FuncFormatter(_bar_number))
    bar.ax.minorticks_off()
    if is_log:
        bar.set_ticks(_log_ticks(low, high))
        bar.ax.set_title("log", fontsize=7, pad=3)
    if shade.scale == "row":
        first = "-largest" if shade.is_diverging else "least"
        last = "largest" if shade.is_diverging else "most"
        labels = [f"{end}\nof a row" for end in (first, last)]
        bar.set_ticks([low, high], labels=["0", labels[1]] if low == 0 else labels)


def _log_ticks(low: float, high: float) -> list[float]:
    """Both ends, and powers of ten between them that do not touch these or each other."""
    first, last = np.log10([low, high])
    powers = np.arange(np.ceil(first), np.floor(last) + 1)
    apart = (last - first) / 10
    inner = powers[(powers - first > apart) & (last - powers > apart)]
    return [low, *10.0 ** inner[:: len(inner) // MOST_DECADES + 1], high]


def _bar_number(value: float, place: int | None) -> str:
    return f"{value:.3g}"
