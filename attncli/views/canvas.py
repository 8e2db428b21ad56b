"""A canvas measured in inches from its upper left corner, with labels, images, numbers and colour bars."""

from itertools import count
from unicodedata import bidirectional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.cells import cell_len

from attncli.views.colours import Shading, colour_map
from attncli.views.matrices import Matrix
from attncli.views.texts import fixed, token_texts

DOTS_PER_INCH = 150
CHARACTER, LABEL_HEIGHT = 0.068, 0.13
TITLE_CHARACTER, TITLE_HEIGHT = 0.075, 0.2
LONGEST_LABEL = 16
LEFT_TO_RIGHT = "\u200e"


def labels(tokens: tuple[str, ...], size: int) -> list[str]:
    """Return the position and shortened token of each place, or only the positions if there are no tokens."""
    return [_label(place, text) for place, text in enumerate(token_texts(tokens, size, LONGEST_LABEL))]


def _label(place: int, token: str) -> str:
    """Put the position before the token, even if the token is written from right to left."""
    is_leftward = any(bidirectional(character) in ("R", "AL") for character in token)
    return f"{LEFT_TO_RIGHT if is_leftward else ''}{place} {token}".rstrip()


def longest(texts: list[str]) -> float:
    """Return the length, in inches, of the longest label."""
    return CHARACTER * max(map(cell_len, texts)) + 0.1


def set_labels(axis: Axis, name: str, texts: list[str], length: float) -> None:
    """Set the labels, far enough apart to be readable, and the name of the axis."""
    if not texts:
        axis.set_ticks([])
        return
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if step * length >= LABEL_HEIGHT * len(texts))
    axis.set_ticks(range(0, len(texts), step), texts[::step])
    axis.set_label_text(name.replace("_", " "))


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at a position in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    place = left / total_width, bottom / total_height, width / total_width, height / total_height
    return figure.add_axes(place)


BAR_GAP, BAR_WIDTH, BAR_LABELS = 0.12, 0.12, 0.7
NO_NUMBER = (232, 232, 232)
# The font size of numbers in cells; the width of a character, the gap beside it, and its height, in inches.
NUMBER_SIZE, NUMBER_CHARACTER, NUMBER_GAP, NUMBER_HEIGHT = 6, 0.053, 0.03, 0.12
# The lightness of red, green and blue; on a background above it, black is easier to read than white.
LUMINANCE, LIGHT = np.array([0.299, 0.587, 0.114]), 140
MOST_DECADES = 5


def image(shades: np.ndarray, is_diverging: bool) -> np.ndarray:
    """Return RGB values from 0 to 255 for positions on the colour map; missing numbers are grey."""
    table = np.concatenate([colour_map(is_diverging), [NO_NUMBER]]).astype(np.uint8)
    is_number = ~np.isnan(shades)
    levels = np.multiply(shades, 255, where=is_number, out=np.full(shades.shape, 256.0))
    rgb: np.ndarray = table[levels.round().astype(np.int16)]
    return rgb


MOST_DOTS = 1000
"""The dots along each side of a finely drawn image: more than the space in the picture has."""


def draw_image(axes: Axes, rgb: np.ndarray, *, is_fine: bool) -> None:
    """Draw one colour per entry; only entries smaller than a dot are averaged."""
    rows, columns = rgb.shape[:2]
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    if is_fine:
        for axis, count in enumerate((rows, columns)):
            rgb = rgb.repeat(max(1, MOST_DOTS // count), axis)
    axes.imshow(rgb, aspect="auto", interpolation="antialiased" if is_fine else "nearest", extent=extent)


def draw_numbers(
    axes: Axes, matrix: Matrix, rgb: np.ndarray, size: tuple[float, float], precision: int
) -> None:
    """Write the number in each cell, in black or white, if all the numbers fit."""
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


def draw_bar(figure: Figure, shade: Shading, unit: str, place: tuple[float, float, float, float]) -> None:
    """Draw the colour bar and its label; missing numbers are transparent."""
    if np.isnan(shade.low):
        return
    low, high = shade.low, shade.high
    if low == high:  # All numbers are equal; they get the colour at the end away from zero.
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    is_log = shade.scale == "log" and low > 0
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    colours = ListedColormap(colour_map(shade.is_diverging) / 255)
    number = FuncFormatter(lambda value, place: f"{value:.3g}")
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes_at(figure, *place), format=number)
    bar.ax.minorticks_off()
    bar.set_label(unit, fontsize=7)
    if is_log:
        bar.set_ticks(_log_ticks(low, high))
        bar.ax.set_title("log", fontsize=7, pad=3)
    if shade.scale == "row":
        ends = ["-largest", "largest"] if shade.is_diverging else ["least", "most"]
        first, last = (f"{end}\nof a row" for end in ends)
        bar.set_ticks([low, high], labels=["0" if low == 0 else first, last])


def _log_ticks(low: float, high: float) -> list[float]:
    """Return both ends and the powers of ten between them that are far enough apart."""
    first, last = np.log10([low, high])
    powers = np.arange(np.ceil(first), np.floor(last) + 1)
    apart = (last - first) / 10
    inner = powers[(powers - first > apart) & (last - powers > apart)]
    return [low, *10.0 ** inner[:: len(inner) // MOST_DECADES + 1], high]
