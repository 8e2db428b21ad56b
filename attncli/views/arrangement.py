"""Arranges the blocks of a picture in rows and columns with little empty space."""

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.25
"""Inches between two blocks."""
WIDEST, NARROWEST = 20.0, 4.0
USUAL_SHAPE, SHAPE_COST = 1.6, 0.05
"""The best ratio of width to height, and the blank share that is as bad as a ratio off by a factor of e."""
WIDTHS_TRIED = 24


class DrawnBlock(Protocol):
    """A drawing, with its size in inches and the size to which it can stretch."""

    width: float
    height: float

    @property
    def largest(self) -> tuple[float, float]:
        """The largest width and height, or the block's own size if it cannot stretch."""
        ...

    def stretch(self, width: float, height: float) -> None:
        """Take the given width and height."""
        ...

    def draw(self, figure: "Figure", left: float, top: float) -> None:
        """Draw the block with its upper left corner at the given position of the figure."""
        ...


class Rigid:
    """A block of fixed size."""

    width: float
    height: float

    @property
    def largest(self) -> tuple[float, float]:
        """The block's size."""
        return self.width, self.height

    def stretch(self, width: float, height: float) -> None:
        """Do nothing, because the size is fixed."""


BlockColumn = list[DrawnBlock]
BlockRow = list[BlockColumn]


class Placed(NamedTuple):
    """A block and its upper left corner, in inches from the corner of the arrangement."""

    block: DrawnBlock
    left: float
    top: float


class Arrangement(NamedTuple):
    """The position of each block, and the total size."""

    placed: list[Placed]
    width: float
    height: float


def arranged(groups: Sequence[Sequence[DrawnBlock]]) -> Arrangement:
    """Arrange blocks from left to right in rows, and stretch some to fill empty space.

    The blocks of a group stay in one row if they fit. A small block may be placed below another one, beside a
    taller block.
    """
    blocks = [block for group in groups for block in group]
    least = max(block.width for block in blocks)
    most = max(least, min(WIDEST, sum(block.width + GAP for block in blocks)))
    limits = [least + (most - least) * step / WIDTHS_TRIED for step in range(WIDTHS_TRIED + 1)]
    rows = min((rows_within(groups, limit) for limit in limits), key=_cost)
    return _placed(rows)


def rows_within(groups: Sequence[Sequence[DrawnBlock]], limit: float) -> list[BlockRow]:
    """Split blocks into rows of at most the given width; a group that does not fit begins a new row."""
    rows: list[BlockRow] = []
    for group in groups:
        together = sum(block.width + GAP for block in group) - GAP
        for number, block in enumerate(group):
            row = rows[-1] if rows else []
            if len(group) == 1 and _fits_below(block, row):
                row[-1].append(block)
                continue
            needed = block.width if number else together
            if not row or (_width(row) + GAP + needed > limit + 1e-9 and (not number or len(row) > 0)):
                rows.append([[block]])
            else:
                row.append([block])
    return rows


def _fits_below(block: DrawnBlock, row: BlockRow) -> bool:
    """Return True if a block fits below the last column of a row without enlarging the row."""
    return (
        len(row) > 1
        and block.width <= _column_width(row[-1])
        and _column_height(row[-1]) + GAP + block.height <= _height(row)
    )


def _column_width(column: BlockColumn) -> float:
    return max(block.width for block in column)


def _column_height(column: BlockColumn) -> float:
    return sum(block.height + GAP for block in column) - GAP


def _width(row: BlockRow) -> float:
    return sum(_column_width(column) + GAP for column in row) - GAP


def _height(row: BlockRow) -> float:
    return max(map(_column_height, row))


def _cost(rows: Sequence[BlockRow]) -> float:
    """Return the empty share of the canvas after stretching, plus a penalty for unusual shapes."""
    width = max(NARROWEST, *map(_width, rows))
    height = sum(_height(row) + GAP for row in rows) - GAP
    used = 0.0
    for row in rows:
        sizes = _stretched(row, width)
        used += sum(across * down for column in sizes for across, down in column)
        used += GAP * (len(row) - 1) * _height(row)
    used += GAP * (len(rows) - 1) * width
    return 1 - used / (width * height) + SHAPE_COST * abs(log(width / height / USUAL_SHAPE))


def _stretched(row: BlockRow, width: float) -> list[list[tuple[float, float]]]:
    """Return the sizes of a row's blocks: single blocks in a column stretch down, the last column across."""
    sizes = [[(block.width, block.height) for block in column] for column in row]
    left, height = width - _width(row), _height(row)
    for number in reversed(range(len(row))):
        if len(row[number]) == 1:
            (block,) = row[number]
            across = min(max(block.width, block.largest[0]), block.width + left)
            sizes[number] = [(across, min(max(block.height, block.largest[1]), height))]
            left -= across - block.width
    return sizes


def _placed(rows: Sequence[BlockRow]) -> Arrangement:
    width = max(map(_width, rows))
    placed, top = [], 0.0
    for row in rows:
        left, height = 0.0, _height(row)
        for column, sizes in zip(row, _stretched(row, width), strict=True):
            y = top
            for block, size in zip(column, sizes, strict=True):
                if size != (block.width, block.height):
                    block.stretch(*size)
                placed.append(Placed(block, left, y))
                y += size[1] + GAP
            left += max(across for across, _ in sizes) + GAP
        top += height + GAP
    return Arrangement(placed, width, top - GAP)
