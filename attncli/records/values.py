"""The plain data of results: tensors with named axes, tables, single numbers. Imports no torch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, SupportsIndex, cast, overload

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator
from typing_extensions import TypeVar

from attncli.errors import NoSuchName

if TYPE_CHECKING:
    RowSlice = slice[int | None, int | None, int | None]

# Valid names of tensor axes.
AXES = (
    "batch", "layer", "head", "query", "key", "token", "dim", "embed", "rank", "query_block", "key_block",
    "point", "bucket", "vector", "row", "column", "part", "source", "step", "map", "way",
)  # fmt: skip
PLACES = ("layer", "head")
"""The axes that identify a head in a survey."""


def has_head_rows(group: str) -> bool:
    """Return True if the table with that name has one row per head.

    A store names the numbers of such a table only by their columns, and indexes them by layer and head.
    """
    return group == "heads"


def are_equal(a: object, b: object) -> bool:
    """Return True if two values are equal, where arrays may have NaN in the same positions."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")
    is_array = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return not is_array and bool(a == b)


@dataclass(frozen=True)
class Mask:
    """The keys that each query may attend: those that satisfy every rule, or all keys without rules.

    With `causal`, the last query is at the last key; otherwise, the first query is at the first key. `causal`
    excludes later keys. `window` allows keys at a distance below this number. `visible` (query, key) is 1 for
    visible keys, else 0, and has the tensor's leading axes if its matrices differ.
    """

    causal: bool = False
    window: int | None = None
    visible: npt.NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, visible: npt.NDArray[np.bool_] | npt.NDArray[np.uint8] | npt.NDArray[np.float64]) -> "Mask":
        """Return the mask with these visible keys: causal, a window, or both if these are equivalent."""
        *leading, num_queries, num_keys = visible.shape
        first = visible[(0,) * len(leading)]
        if first.all() and visible.all():
            return cls()
        causal = num_queries <= num_keys and not visible[..., later_keys(num_queries, num_keys)].any()
        width = int(first[-1].sum())
        by_rule = cls(causal, width if width < num_keys else None)
        hidden = by_rule.hidden(num_queries, num_keys)
        is_rule = hidden is not None and bool((visible == ~hidden).all())
        return by_rule if is_rule else cls(causal, visible=visible.astype(np.uint8))

    def hidden(self, num_queries: int, num_keys: int) -> npt.NDArray[np.bool_] | None:
        """Return True for keys that a query may not attend, or None if all are visible.

        The array has the shape of `visible`.
        """
        if self == Mask():
            return None
        shift = num_keys - num_queries if self.causal else 0
        behind = np.arange(num_queries)[:, np.newaxis] + shift - np.arange(num_keys)
        hidden = behind < 0 if self.causal else np.zeros(behind.shape, dtype=bool)
        if self.window is not None:
            hidden |= np.abs(behind) >= self.window
        return hidden if self.visible is None else hidden | (self.visible == 0)

    def fields(self) -> dict[str, object]:
        """Return the mask in the form used in JSON, but with its array."""
        window = {} if self.window is None else {"window": self.window}
        visible = {} if self.visible is None else {"visible": self.visible}
        return {"causal": self.causal, **window, **visible}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mask):
            return False
        rules = (self.causal, self.window) == (other.causal, other.window)
        return rules and are_equal(self.visible, other.visible)


MAPS = (("query", "key"), ("query_block", "key_block"))
"""The last two axes of tensors that can have a mask."""


def later_keys(num_queries: int, num_keys: int) -> npt.NDArray[np.bool_]:
    """Return True for the keys after each query, where the last query is at the last key."""
    return np.triu(np.ones((num_queries, num_keys), dtype=bool), 1 + num_keys - num_queries)


if TYPE_CHECKING:  # numpy's stubs cannot express any number type without Any
    NumberArray = npt.NDArray[np.float16 | np.float32 | np.float64 | np.int64]
    CellArray = npt.NDArray[np.float16 | np.float32 | np.float64 | np.int64 | np.bool_ | np.object_]
else:
    NumberArray, CellArray = npt.NDArray[np.number], npt.NDArray[np.generic]
"""Numbers of any precision that torch produces; and any array that can be a column."""
SortKey = float | str | tuple[float | str, ...]
"""The types of key by which rows can be sorted."""


@dataclass(frozen=True, repr=False)
class NamedTensor:
    """Numbers with a name for each axis.

    Missing numbers (masked scores) are NaN or infinite in floating point, and -1 for indices. `mask` is None
    if unknown. The softmax's input is the scores times `scale`, which is None if it is unknown or if anything
    else changes the scores.
    """

    axes: tuple[str, ...]
    values: NumberArray
    mask: Mask | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        assert len(self.axes) == self.values.ndim, f"{self.axes} for {self.values.shape}"

    def __repr__(self) -> str:
        sizes = ", ".join(f"{axis}: {size}" for axis, size in zip(self.axes, self.values.shape, strict=True))
        return f"<NamedTensor ({sizes}) of {self.values.dtype}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NamedTensor):
            return False
        facts = (self.axes, self.mask, self.scale) == (other.axes, other.mask, other.scale)
        return facts and are_equal(self.values, other.values)

    def at(self, place: int) -> "NamedTensor":
        """Return the element at an index on the first axis."""
        mask = self.mask
        if mask is not None and mask.visible is not None and mask.visible.ndim == self.values.ndim:
            mask = replace(mask, visible=mask.visible[place if len(mask.visible) > 1 else 0])
        return NamedTensor(self.axes[1:], self.values[place], mask, self.scale)

    def fields(self) -> dict[str, object]:
        """Return the tensor in the form used in JSON, but with its arrays."""
        mask = {} if self.mask is None else {"mask": self.mask.fields()}
        scale = {} if self.scale is None else {"scale": self.scale}
        return {"axes": self.axes, **mask, **scale, "values": self}


def _checked_cell(value: object) -> object:
    if type(value) not in (str, int, float, type(None)):
        raise ValueError("must be a number, a string or null")
    return value


# Annotations are checked only when a saved report is read.
Number = int | float | None
Cell = Annotated[str | Number, BeforeValidator(_checked_cell)]
"""A table cell: text, a number, or None for a missing number (a hidden score)."""


class Numbers(dict[str, Number]):
    """Single numbers by name."""

    def __missing__(self, name: str) -> Number:
        raise NoSuchName("number", name, self)


class Tensors(dict[str, NamedTensor]):
    """Tensors by name: the group `rows` has one number per query, the group `keys` one per key."""

    def __missing__(self, name: str) -> NamedTensor:
        raise NoSuchName("tensor", name, self)


Row = Mapping[str, Cell | list[Cell] | NumberArray]
"""Cells by column name; a cell of a tensor column is an array."""


RowKind = TypeVar("RowKind", bound=Row, covariant=True, default=Row)


class Table(Sequence[RowKind]):
    """Rows of named cells that all have the same names; a cell may be a list of numbers."""

    def __init__(self, rows: Iterable[Mapping[str, object]] = ()) -> None:
        self._rows = cast(list[RowKind], [*rows])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, place: SupportsIndex) -> RowKind: ...

    @overload
    def __getitem__(self, place: "RowSlice") -> Sequence[RowKind]: ...

    def __getitem__(self, place: "SupportsIndex | RowSlice") -> RowKind | Sequence[RowKind]:
        return self._rows[place]

    def __iter__(self) -> Iterator[RowKind]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table | list) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]  # unhashable, because equality is that of lists

    def __repr__(self) -> str:
        return repr([*self])

    def grids(self, name: str) -> dict[str, NamedTensor]:
        """Return a column of a head survey by layer and head: one grid per stack, with NaN for missing heads.

        The stacks are in the order of the rows; the name of a single stack is empty.
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


def _grid(cells: Mapping[tuple[int, ...], object]) -> npt.NDArray[np.float64]:
    grid = np.full(np.max(list(cells), axis=0) + 1, np.nan)
    for place, cell in cells.items():
        if isinstance(cell, int | float):
            grid[place] = cell
    return grid


Statistic = Numbers | Tensors | Table


def statistic_for_text(statistic: Statistic, place: int) -> Statistic:
    """Return one text's part of a statistic of several texts that ran together; scalars become numbers."""
    if not isinstance(statistic, Tensors):
        return statistic
    tensors = Tensors((name, tensor.at(place)) for name, tensor in statistic.items())
    if any(tensor.axes for tensor in tensors.values()):
        return tensors
    numbers = {name: tensor.values.item() for name, tensor in tensors.items()}
    return Numbers((name, number if number == number else None) for name, number in numbers.items())
