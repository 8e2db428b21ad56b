"""Places and labels in a picture, in inches; labels are shortened, thinned and never parsed."""

from itertools import count
from unicodedata import bidirectional

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from rich.cells import cell_len

from attncli.views.labels import shortened, token_texts
from attncli.views.terminal.blocks import wrap_cells

CHARACTER, LABEL_HEIGHT = 0.068, 0.13
TITLE_CHARACTER, TITLE_HEIGHT = 0.075, 0.2
LONGEST_LABEL = 16
LEFT_TO_RIGHT = "\u200e"


def fitted_lines(text: str, width: float, size: float, most: int) -> list[str]:
    """A text of that font size in at most that many lines of that width in inches; the rest is cut."""
    cells = max(20, int(width / (TITLE_CHARACTER * size / 9)))
    lines = wrap_cells(text, cells)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shortened(" ".join(lines[most - 1 :]), cells)]


def labels(tokens: tuple[str, ...], size: int) -> list[str]:
    """The position and the shortened token of each place; the position alone where there are no tokens."""
    return [_label(place, text) for place, text in enumerate(token_texts(tokens, size, LONGEST_LABEL))]


def _label(place: int, token: str) -> str:
    """The position precedes a token that is written from right to left, too."""
    is_leftward = any(bidirectional(character) in ("R", "AL") for character in token)
    return f"{LEFT_TO_RIGHT if is_leftward else ''}{place} {token}".rstrip()


def longest(texts: list[str]) -> float:
    """The inches that the longest of the labels takes."""
    return CHARACTER * max(map(cell_len, texts)) + 0.1


def set_labels(axis: Axis, name: str, texts: list[str], length: float) -> None:
    """Labels so far apart that they stay readable, and the name of the axis where there are any."""
    if not texts:
        axis.set_ticks([])
        return
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if step * length >= LABEL_HEIGHT * len(texts))
    axis.set_ticks(range(0, len(texts), step), texts[::step])
    axis.set_label_text(name.replace("_", " "))


def axes_at(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place in inches from the upper left corner."""
    total_width, total_height = figure.get_size_inches()
    bottom = total_height - top - height
    place = left / total_width, bottom / total_height, width / total_width, height / total_height
    return figure.add_axes(place)
