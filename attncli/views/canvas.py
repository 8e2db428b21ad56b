"""A canvas measured in inches from its upper left corner: text, images, numbers, signs and colour bars."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import count, pairwise
from typing import Any, Protocol
from unicodedata import bidirectional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator, NullLocator

from attncli.views.colours import Shading, colour_map
from attncli.views.matrices import Matrix
from attncli.views.texts import fixed, shortened, token_texts

CENTIMETRES = 2.54
SINGLE, DOUBLE = 8.5 / CENTIMETRES, 17.5 / CENTIMETRES
"""The widths of one column and of both columns of a paper, in inches."""
WIDTHS = {"single": SINGLE, "double": DOUBLE}
DOTS_PER_INCH, VECTOR_DOTS = 300, 600
"""The dots per inch of a PNG, and of the maps within an SVG or a PDF: more than programs blur."""
TITLE_SIZE, NAME_SIZE, LABEL_SIZE = 8.0, 7.0, 6.0
"""Points of titles, of the names of axes, and of all other text: the smallest."""
LINE = 1.3 / 72
"""Inches per point from one line of text to the next."""
LONGEST_LABEL, LEAST_LABEL, LABEL_SHARE = 16, 6, 0.25
LEFT_TO_RIGHT = "\u200e"


class Panel(Protocol):
    """A drawing that fits any width. `fits_single` is true if it is legible in one column of a paper.

    `title` stands above it if there are several; `legend` says in a sentence what its marks mean.
    """

    title: str
    legend: str
    fits_single: bool

    def height(self, width: float) -> float:
        """Return the height, in inches, at that width."""
        ...

    def draw(self, figure: Figure, left: float, top: float, width: float) -> None:
        """Draw the panel with its upper left corner at that position."""
        ...


@lru_cache(maxsize=1 << 13)
def text_width(text: str, points: float = LABEL_SIZE) -> float:
    """Return the width of a text in inches, with some room, because programs round the width of letters."""
    width, _, _ = text_to_path.get_text_width_height_descent(text, FontProperties(size=points), ismath=False)
    return 1.04 * float(width) / 72


def widest(texts: Sequence[str], points: float = LABEL_SIZE) -> float:
    """Return the width of the widest text in inches."""
    return max((text_width(text, points) for text in texts), default=0.0)


def write(figure: Figure, text: str, left: float, top: float, size: float, **style: Any) -> None:
    """Write a text whose upper left corner, unless the style aligns it otherwise, is at a position."""
    width, height = figure.get_size_inches()
    figure.text(left / width, 1 - top / height, text, fontsize=size, **{"va": "top", "ha": "left", **style})


def labels(tokens: tuple[str, ...], size: int, width: float, *, has_positions: bool = True) -> list[str]:
    """Return the position and shortened token of each place, or only the positions if there are no tokens.

    Long tokens are cut so that labels take at most a share of the panel's width.
    """
    for most in range(LONGEST_LABEL, LEAST_LABEL - 1, -1):
        texts = token_texts(tokens, size, most)
        if has_positions or not tokens:
            texts = [_label(place, text) for place, text in enumerate(texts)]
        if widest(texts) <= LABEL_SHARE * width:
            break
    return texts


def _label(place: int, token: str) -> str:
    """Put the position before the token, even if the token is written from right to left."""
    is_leftward = any(bidirectional(character) in ("R", "AL") for character in token)
    return f"{LEFT_TO_RIGHT if is_leftward else ''}{place} {token}".rstrip()


def shortened_to(text: str, width: float, points: float = LABEL_SIZE) -> str:
    """Cut a text so that it is at most that many inches wide."""
    lengths = range(len(text), 0, -1)
    return next((cut for n in lengths if text_width(cut := shortened(text, n), points) <= width), text[:1])


def set_labels(axis: Axis, texts: list[str], length: float, *, needed: float = LABEL_SIZE * LINE) -> None:
    """Set the labels, or only every second, fifth, tenth, ..., so that each has the space that it needs."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if step * length >= needed * len(texts))
    axis.set_ticks(range(0, len(texts), step), texts[::step])


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes at a position in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    place = left / total_width, bottom / total_height, width / total_width, height / total_height
    return figure.add_axes(place)


NO_NUMBER = (255, 255, 255)
"""White, because grey is the middle of the colour map of signed numbers, and any colour in print."""
# The lightness of red, green and blue; on a background above it, black is easier to read than white.
LUMINANCE, LIGHT = np.array([0.299, 0.587, 0.114]), 140
NUMBER_GAP = 0.04


def image(shades: np.ndarray, is_diverging: bool) -> np.ndarray:
    """Return RGB values from 0 to 255 for positions on the colour map; missing numbers are white."""
    table = np.concatenate([colour_map(is_diverging), [NO_NUMBER]]).astype(np.uint8)
    is_number = ~np.isnan(shades)
    levels = np.multiply(shades, 255, where=is_number, out=np.full(shades.shape, 256.0))
    rgb: np.ndarray = table[levels.round().astype(np.int16)]
    return rgb


MOST_DOTS = 2000
"""The dots along each side of a finely drawn image: more than the space in the figure has."""


def draw_image(axes: Axes, rgb: np.ndarray) -> None:
    """Draw one colour per entry with sharp edges; only entries smaller than a dot are averaged."""
    rows, columns = rgb.shape[:2]
    inches = axes.get_position().size * axes.get_figure().get_size_inches()  # type: ignore[union-attr]
    is_fine = max(columns / inches[0], rows / inches[1]) > DOTS_PER_INCH
    extent = (-0.5, columns - 0.5, rows - 0.5, -0.5)
    if is_fine:
        for axis, count in enumerate((rows, columns)):
            rgb = rgb.repeat(max(1, MOST_DOTS // count), axis)
    axes.imshow(rgb, aspect="auto", interpolation="antialiased" if is_fine else "nearest", extent=extent)


def number_texts(matrix: Matrix, size: tuple[float, float], precision: int) -> list[list[str]] | None:
    """Return the text of each number, without a zero before the point if needed; None if any does not fit."""
    num_rows, num_columns = matrix.values.shape
    room = size[0] / num_columns - NUMBER_GAP
    if size[1] / num_rows < LABEL_SIZE * LINE or room < text_width("0"):
        return None
    texts = [[fixed(n, precision) if np.isfinite(n) else "" for n in row] for row in matrix.drawn]
    shorter = [
        [text.replace("0.", ".", 1) if text.lstrip("-")[:2] == "0." else text for text in row]
        for row in texts
    ]
    fits = (each for each in (texts, shorter) if widest([text for row in each for text in row]) <= room)
    return next(fits, None)


def draw_numbers(axes: Axes, texts: list[list[str]], rgb: np.ndarray) -> None:
    """Write the number in each cell, in black or white."""
    is_light = rgb @ LUMINANCE > LIGHT
    for (i, j), colour in np.ndenumerate(np.where(is_light, "black", "white")):
        axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=LABEL_SIZE, color=str(colour))


STROKE = 0.5
FAINT = 0.02
"""The least distance from zero, as a share of the colour map, at which a negative number is marked."""


def draw_signs(axes: Axes, shades: np.ndarray, rgb: np.ndarray, cell: float) -> None:
    """Cross out each negative number with a stroke, because in grey both signs look alike."""
    rows, columns = np.nonzero(np.nan_to_num(shades, nan=1.0) < 0.5 - FAINT)
    lines = [[(x - 0.5, y + 0.5), (x + 0.5, y - 0.5)] for y, x in zip(rows, columns, strict=True)]
    is_light = rgb[rows, columns] @ LUMINANCE > LIGHT
    stroke = min(STROKE, 72 * cell / 6)
    axes.add_collection(
        LineCollection(lines, colors=np.where(is_light, "black", "white").tolist(), linewidths=stroke),
        autolim=False,
    )


BAR_HEIGHT, MOST_DECADES = 0.07, 5
BAR_ABOVE = NAME_SIZE * LINE + 0.02
BAR_SPACE = BAR_ABOVE + BAR_HEIGHT + LABEL_SIZE * LINE + 0.08
"""The height that a colour bar takes, with its name and its numbers."""
LEAST_APART, NEGLIGIBLE = 0.45, 1e-4
"""The inches between two numbers of a colour bar, and the share of its high end that is written as 0."""


def draw_bar(
    figure: Figure,
    shade: Shading,
    name: str,
    corner: tuple[float, float],
    width: float,
    *,
    has_signs: bool = False,
) -> None:
    """Draw a colour bar with its name above it and its range below it; `has_signs`: cells are crossed out."""
    if np.isnan(shade.low):
        return
    low, high = shade.low, shade.high
    if low == high:  # All numbers are equal; they get the colour at the end away from zero.
        low, high = min(low, 0.0), max(high, 0.0) or 1.0
    is_log = shade.scale == "log" and low > 0
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    colours = ListedColormap(colour_map(shade.is_diverging) / 255)
    left, top = corner
    axes = axes_at(figure, left, top + BAR_ABOVE, width, BAR_HEIGHT)
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=axes, orientation="horizontal")
    ticks, texts = _bar_ticks(shade, low, high, width, is_log=is_log)
    bar.set_ticks(ticks, labels=texts)
    axes.xaxis.set_minor_locator(NullLocator())
    first, *_, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    name += ", logarithmic" if is_log else ""
    if has_signs:
        name += ", crossed out: negative"
        _draw_bar_signs(axes, low)
    write(figure, name, left, top, NAME_SIZE)


def _draw_bar_signs(axes: Axes, low: float) -> None:
    """Cross out the negative half of a bar as often as cells that are as tall as the bar."""
    ends = np.linspace(low, 0.0, 12)
    lines = [[(one, 0.0), (other, 1.0)] for one, other in pairwise(ends)]
    axes.add_collection(LineCollection(lines, colors="black", linewidths=STROKE), autolim=False)


def _bar_ticks(
    shade: Shading, low: float, high: float, width: float, *, is_log: bool
) -> tuple[list[float], list[str]]:
    """Return both ends and what lies far enough from them and from each other, with their texts."""
    if shade.scale == "row":
        ends = ["-largest", "largest"] if shade.is_diverging else ["least", "largest"]
        return [low, high], ["0" if low == 0 else ends[0], ends[1]]
    apart = min(0.4, LEAST_APART / width)
    if is_log:
        first, last = np.log10([low, high])
        powers = np.arange(np.ceil(first), np.floor(last) + 1)
        places = (powers - first) / (last - first)
        inner = 10.0 ** powers[(places > apart) & (1 - places > apart)]
        inner = inner[:: len(inner) // MOST_DECADES + 1]
    else:
        values = np.array(
            MaxNLocator(nbins=max(1, int(1 / apart)), steps=[1, 2, 5, 10]).tick_values(low, high)
        )
        places = (values - low) / (high - low)
        inner = np.array([0.0]) if shade.is_diverging else values[(places > apart) & (1 - places > apart)]
    ticks = [low, *inner.tolist(), high]
    texts = [f"{tick:.3g}" for tick in ticks]
    # Of rounding errors beside large numbers, nobody reads `8.21e-07`.
    return ticks, texts if is_log or abs(low) > NEGLIGIBLE * high else ["0", *texts[1:]]
