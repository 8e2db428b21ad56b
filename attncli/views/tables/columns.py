"""Columns of a table, cut into groups that fit the width; each group repeats the labels of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

GAP = 2


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, the cells below it, and how they stand."""

    header: tuple[str, ...]
    cells: Sequence[str]
    left: bool = False
    emphasis: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        """Terminal cells that the widest line takes."""
        return max(map(cell_len, (*self.header, *self.cells)), default=0)


def shortened(text: str, most: int | None) -> str:
    """The text in at most that many cells, an ellipsis at the end of what was cut."""
    if most is None or cell_len(text) <= most:
        return text
    return set_cell_size(text, most - 1).rstrip() + "…"


def column_groups(label: Column, columns: Sequence[Column], width: int | None) -> list[Sequence[Column]]:
    """The columns in groups of which each fits the width beside the labels; at least one column a group."""
    if width is None:
        return [columns] if columns else []
    starts, used = [0], label.width
    for i, column in enumerate(columns):
        needed = GAP + column.width
        if used + needed > width and i > starts[-1]:
            starts.append(i)
            used = label.width
        used += needed
    return [columns[a:b] for a, b in pairwise([*starts, len(columns)])] if columns else []
