"""Lines of text that know how many terminal cells they take, and blocks of them side by side."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

BOLD, DIM, RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


class ScreenLine(NamedTuple):
    """A text, maybe with escape sequences, and the cells it takes on the screen."""

    text: str
    cells: int


def text_line(text: str) -> ScreenLine:
    """A line of plain text."""
    return ScreenLine(text, cell_len(text))


def styled(text: str, style: str, has_color: bool) -> ScreenLine:
    """A line of plain text, bold, dim or coloured where there is any colour."""
    return ScreenLine(f"{style}{text}{RESET}" if has_color else text, cell_len(text))


def wrapped(text: str, width: int | None, style: str, has_color: bool) -> list[ScreenLine]:
    """A text in as many lines as the width needs, bold or dim."""
    lines = wrap_cells(text, width) if width is not None else [text]
    return [styled(line, style, has_color) for line in lines]


def wrap_cells(text: str, width: int) -> list[str]:
    """The words of a text in lines of at most that many cells; longer words continue on the next line."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width) or [""]
    return lines


def text_columns(texts: Sequence[str], width: int) -> list[str]:
    """Texts in as many columns as fit; those longer than half the width below, over several lines."""
    short = [text for text in texts if cell_len(text) + 2 <= width // 2]
    size = max(map(cell_len, short), default=0) + 2
    across = max(1, width // size)
    padded = [text + " " * (size - cell_len(text)) for text in short]
    lines = ["".join(padded[i : i + across]).rstrip() for i in range(0, len(padded), across)]
    for text in texts:
        if cell_len(text) + 2 > width // 2:
            lines += chop_cells(text, width)
    return lines


def bar(share: float, width: int) -> str:
    """A bar of that share of the width, to an eighth of a cell."""
    eighths = round(share * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8]


def joined(lines: Sequence[ScreenLine]) -> ScreenLine:
    """One line after another on one."""
    return ScreenLine("".join(line.text for line in lines), sum(line.cells for line in lines))


def beside(blocks: Sequence[Sequence[ScreenLine]], gap: int) -> list[ScreenLine]:
    """Blocks side by side with their tops level, `gap` cells apart."""
    widths = [max((line.cells for line in block), default=0) for block in blocks]
    rows = zip_longest(*blocks, fillvalue=ScreenLine("", 0))
    return [_row(row, widths, gap) for row in rows]


def _row(row: Sequence[ScreenLine], widths: Sequence[int], gap: int) -> ScreenLine:
    pieces: list[ScreenLine] = []
    missing = 0
    for line, width in zip(row, widths, strict=True):
        if line.text:
            pieces += [ScreenLine(" " * missing, missing), line]
            missing = 0
        missing += width - (line.cells if line.text else 0) + gap
    return joined(pieces)
