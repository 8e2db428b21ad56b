"""Labels along the sides of a picture: position and token; long tokens shortened, told in full below it."""

from collections.abc import Sequence

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.views.sides import Side
from attncli.views.terminal.blocks import ScreenLine, text_line

MOST_VERTICAL = 8
TICK_CELLS = 10


def label_width(side: Side, most: int | None, *, in_pairs: bool) -> int:
    """Cells that the labels may take: of single rows, of blocks of rows, and of two rows a line."""
    labels = side.labels(most) + (side.labels(most, rows_per_line=2) if in_pairs else [])
    return max([span_width(side), *map(cell_len, labels)])


def span_width(side: Side) -> int:
    """Cells that the labels of blocks of rows take."""
    return max(2 * side.digits + 1, len(side.name))


def wide_enough(side: Side, most: int | None) -> int:
    """Cells a column so that position and token stand above it in one line each, with a blank between."""
    return max([side.digits, *map(cell_len, side.texts(most))]) + 1


def column_header(side: Side, block: int, cell_width: int) -> list[ScreenLine]:
    """Positions and tokens above the columns: in lines, upright, or every so often."""
    if block * side.step > 1 or cell_width == 1:
        return [_ticks(side, block, cell_width)]
    positions = [str(side.first + i) for i in range(side.count)]
    texts = side.texts(None if cell_width == 2 else cell_width - 1)
    if cell_width > 2:
        lines = [positions, texts] if side.tokens else [positions]
        return [_in_cells(line, cell_width) for line in lines]
    lines = _upright(positions)
    if side.tokens:
        words = _upright([_vertical(plain_text(token)) for token in side.tokens])
        lines = [*words, [""] * side.count, *lines]
    return [_in_cells(line, cell_width) for line in lines]


def _in_cells(texts: Sequence[str], cell_width: int) -> ScreenLine:
    line = "".join(text + " " * (cell_width - cell_len(text)) for text in texts)
    return text_line(line.rstrip())


def _vertical(text: str) -> list[str]:
    """The characters, of which each has a line to itself; an ellipsis where there are too many."""
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


def _upright(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Lines of characters that read downwards and end on the last line."""
    height = max(map(len, texts), default=0)
    columns = [[""] * (height - len(text)) + list(text) for text in texts]
    return [[column[line] for column in columns] for line in range(height)]


def _ticks(side: Side, block: int, cell_width: int) -> ScreenLine:
    """The position of every tenth cell, beginning above it, as far as there is room."""
    columns = -(-side.count // block)
    line = ""
    for column in range(0, columns, TICK_CELLS // cell_width):
        number = str(column * block * side.step)
        if column and column * cell_width + len(number) > columns * cell_width:
            break
        line += " " * (column * cell_width - len(line)) + number
    return text_line(line)
