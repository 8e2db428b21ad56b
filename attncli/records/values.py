"""The plain data of results: tensors with named axes, tables, single numbers. No torch, nothing to draw."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, SupportsIndex, cast, overload

import numpy as np
from pydantic import BeforeValidator
from typing_extensions import TypeVar

from attncli.errors import NoSuchName

# What the axes of tensors may be called.
AXES = (
    "batch", "layer", "head", "query", "key", "token", "dim", "embed", "rank", "query_block", "key_block",
    "point", "bucket", "vector", "row", "column", "part", "source", "step", "map",
)  # fmt: skip
PLACES = ("layer", "head")
"""The axes on which a survey has its heads."""


def is_table_of_heads(group: str) -> bool:
    """Whether the table of that name has one row per head.

    A store names its numbers by their columns alone, and places them by layer and head.
    """
    return group == "heads"


def are_equal(a: object, b: object) -> bool:
    """Whether two values are equal; arrays where all their numbers are, and where both have none."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return not is_array and bool(a == b)


@dataclass(frozen=True)
class NamedTensor:
    """Numbers with a name for each axis.

    No number (a masked score) is NaN or infinite in floating point, and -1 in integers (an index of nothing).
    """

    axes: tuple[str, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        assert len(self.axes) == self.values.ndim, f"{self.axes} for {self.values.shape}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedTensor):
            return False
        return self.axes == other.axes and are_equal(self.values, other.values)


def _checked_cell(value: object) -> object:
    if type(value) not in (str, int, float, type(None)):
        raise ValueError("must be a number, a text or null")
    return value


# Annotations are checked where a saved report is read, and nowhere else.
Number = int | float | None
Cell = Annotated[str | Number, BeforeValidator(_checked_cell)]
"""What stands in a table: text, a number, or None for no number (a hidden score)."""


class Numbers(dict[str, Number]):
    """Single numbers by their names."""

    def __missing__(self, name: str) -> Number:
        raise NoSuchName("number", name, self)


class Tensors(dict[str, NamedTensor]):
    """Tensors by their names: a number for each query in the group `rows`, for each key in `keys`."""

    def __missing__(self, name: str) -> NamedTensor:
        raise NoSuchName("tensor", name, self)


Row = Mapping[str, Cell | list[Cell] | np.ndarray]
"""Cells by the names of their columns; a cell of tensors is an array."""


RowKind = TypeVar("RowKind", bound=Row, covariant=True, default=Row)


class Table(Sequence[RowKind]):
    """Rows of named cells, all with the same names; a cell may be a list of numbers."""

    def __init__(self, rows: Iterable[Mapping[str, object]] = ()) -> None:
        self._rows = cast(list[RowKind], [*rows])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: SupportsIndex) -> RowKind: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[RowKind]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> RowKind | Sequence[RowKind]:
        return self._rows[place]

    def __iter__(self) -> Iterator[RowKind]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table | list) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr([*self])

    def grids(self, name: str) -> dict[str, NamedTensor]:
        """Of a survey of heads, a column by layer and head: a grid for each stack, NaN where no head is.

        The stack, in the order of the rows, is empty where there is but one.
        """
        stacks: dict[str, dict[tuple[int, ...], object]] = {}
        for row in self:
            place = tuple(index for axis in PLACES if isinstance(index := row.get(axis), int))
            if len(place) == len(PLACES) and min(place) >= 0:
                stacks.setdefault(str(row.get("stack")), {})[place] = row.get(name)
        return {
            stack if len(stacks) > 1 else "": NamedTensor(PLACES, _grid(cells))
            for stack, cells in stacks.items()
        }


def _grid(cells: Mapping[tuple[int, ...], object]) -> np.ndarray:
    grid = np.full(np.max(list(cells), axis=0) + 1, np.nan)
    for place, cell in cells.items():
        if isinstance(cell, int | float):
            grid[place] = cell
    return grid


Statistic = Numbers | Tensors | Table
