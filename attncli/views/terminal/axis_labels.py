"""Labels along the sides of a picture: position and token; long tokens shortened, told in full below it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from attncli.plain_text import plain_text
from attncli.views.tables.columns import shortened
from attncli.views.terminal.blocks import ScreenLine, text_line

MOST_VERTICAL = 8
TICK_CELLS = 10


@dataclass(frozen=True)
class Side:
    """An axis with a label for each of its places: its name, how many, and tokens if it has any.

    `step`: positions of the text that one place stands for, the last of `positions` (0: as many as places).
    `noun`: what its tokens are called.
    """

    name: str
    count: int
    tokens: tuple[str, ...] = ()
    step: int = 1
    positions: int = 0
    noun: str = "token"

    @property
    def digits(self) -> int:
        """Digits of the last position."""
        return len(str(max(self.last, 0)))

    @property
    def last(self) -> int:
        """The last position; -1 where there is none."""
        return (self.positions or self.count) - 1

    def texts(self, most: int | None) -> list[str]:
        """The tokens as plain text of at most that many cells; empty where there are none."""
        if not self.tokens:
            return [""] * self.count
        return [shortened(plain_text(token), most) for token in self.tokens]

    def shortened_places(self, most: int | None) -> list[int]:
        """The places whose token is longer than that."""
        texts = map(plain_text, self.tokens)
        return [place for place, text in enumerate(texts) if shortened(text, most) != text]


def row_labels(side: Side, block: int, rows_per_line: int, most: int | None) -> list[str]:
    """A label a line: `4 the`; `4 the, 5 cat` where it has two rows; `8-15` where it has blocks of rows."""
    digits, step = side.digits, block * rows_per_line
    if block == 1 and side.tokens and rows_per_line == 1:
        return [f"{i:>{digits}} {text}" for i, text in enumerate(side.texts(most))]
    if block == 1 and side.tokens:
        one = None if most is None else max(4, (most - digits - 3) // 2)
        texts = side.texts(one)
        return [
            ", ".join(f"{i:>{digits}} {texts[i]}" for i in range(start, min(start + step, side.count)))
            for start in range(0, side.count, step)
        ]
    return [
        _span(start * side.step, min((start + step) * side.step - 1, side.last), digits)
        for start in range(0, side.count, step)
    ]


def _span(first: int, last: int, digits: int) -> str:
    return f"{first:>{digits}}" if first == last else f"{first:>{digits}}-{last}"


def label_width(side: Side, most: int | None, *, in_pairs: bool) -> int:
    """Cells that the labels may take: of single rows, of blocks of rows, and of two rows a line."""
    labels = row_labels(side, 1, 1, most)
    if in_pairs:
        labels += row_labels(side, 1, 2, most)
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
    positions = [str(i) for i in range(side.count)]
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
    """Characters that take room, each with the marks that combine with it."""
    found: list[str] = []
    for character in text:
        if cell_len(character) or not found:
            found.append(character)
        else:
            found[-1] += character
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
