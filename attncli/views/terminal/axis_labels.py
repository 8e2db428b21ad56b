"""Labels above and beside a map: position and token, the token shortened where there is little room."""

from collections.abc import Sequence

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.views.labels import LabelledAxis
from attncli.views.terminal.blocks import ScreenLine, text_line

MOST_VERTICAL = 8
TICK_CELLS = 10


def label_width(axis: LabelledAxis, most: int | None, *, in_pairs: bool) -> int:
    """Cells that the labels may take: of single rows, of blocks of rows, and of two rows on a line."""
    labels = axis.labels(most) + (axis.labels(most, rows_per_line=2) if in_pairs else [])
    return max([block_label_width(axis), *map(cell_len, labels)])


def block_label_width(axis: LabelledAxis) -> int:
    """Cells that the labels of blocks of rows take."""
    return max(2 * axis.digits + 1, len(axis.name))


def wide_enough(axis: LabelledAxis, most: int | None) -> int:
    """Cells per column so that position and token each take one line above it, with a blank between."""
    return max([axis.digits, *map(cell_len, axis.texts(most))]) + 1


def most_above(cell_width: int) -> int:
    """The cells of a token above columns of that width: read downwards above two, else across."""
    return MOST_VERTICAL if cell_width == 2 else cell_width - 1


def column_header(axis: LabelledAxis, block: int, cell_width: int) -> list[ScreenLine]:
    """Positions and tokens above the columns: across, downwards, or the position of every tenth cell."""
    if block * axis.step > 1 or cell_width == 1:
        return [_ticks(axis, block, cell_width)]
    positions = [str(axis.first + i) for i in range(axis.count)]
    lines: list[list[str]]
    if cell_width > 2:
        lines = [positions, axis.texts(most_above(cell_width))] if axis.tokens else [positions]
    else:
        lines = _downwards(positions)
        if axis.tokens:
            words = _downwards([_vertical(plain_text(token)) for token in axis.tokens])
            lines = [*words, [""] * axis.count, *lines]
    padded = ("".join(text + " " * (cell_width - cell_len(text)) for text in line) for line in lines)
    return [text_line(line.rstrip()) for line in padded]


def _vertical(text: str) -> list[str]:
    """The characters, each for a line of its own; an ellipsis where there are too many."""
    characters = _whole_characters(text)
    return characters if len(characters) <= MOST_VERTICAL else [*characters[: MOST_VERTICAL - 1], "…"]


def _whole_characters(text: str) -> list[str]:
    """Characters that take room, each with what combines with it: marks, and the rest of an emoji."""
    found: list[str] = []
    for character in text:
        if found and cell_len(found[-1] + character) == cell_len(found[-1]):
            found[-1] += character
        else:
            found.append(character)
    return found


def _downwards(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Lines of characters that read downwards and end on the last line."""
    height = max(map(len, texts), default=0)
    columns = [[""] * (height - len(text)) + list(text) for text in texts]
    return [[column[line] for column in columns] for line in range(height)]


def _ticks(axis: LabelledAxis, block: int, cell_width: int) -> ScreenLine:
    """The position of every tenth cell, beginning above it, as far as there is room."""
    columns = -(-axis.count // block)
    line = ""
    for column in range(0, columns, TICK_CELLS // cell_width):
        number = str(column * block * axis.step)
        if column and column * cell_width + len(number) > columns * cell_width:
            break
        line += " " * (column * cell_width - len(line)) + number
    return text_line(line)
