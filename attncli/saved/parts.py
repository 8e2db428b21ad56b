"""A part of a JSON document that knows where it stands, so that an error names the place."""

import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from attncli.errors import UserError, nearest

DEEPEST = 20
# Beyond these, differences and sums of numbers leave what the computer can hold.
LARGEST, LARGEST_WHOLE = 1e200, 2**63 - 1
LONGEST_NAME = 100
INDEX_SUFFIXES = ("_ids", "_keys")
KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Part:
    """A value and its place: `x.json` for a whole document, `x.json: tensors.weights` in it."""

    value: Any
    document: str
    path: tuple[str, ...] = ()

    def wrong(self, message: str) -> UserError:
        """The error that says what is wrong with this part."""
        place = f"{self.document}: {'.'.join(self.path)}" if self.path else self.document
        return UserError(f"{place}: {message}")

    def got(self) -> str:
        """What is there instead, for a message."""
        return f"(got {KINDS.get(type(self.value)) or reprlib.repr(self.value)})"

    def mapping(self) -> "dict[str, Part]":
        """The parts of an object, whose names are plain."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object {self.got()}")
        for name in self.value:
            if not is_plain_name(name):
                raise self.wrong(f"has a name that is not plain: {reprlib.repr(name)}")
        return {name: Part(item, self.document, (*self.path, name)) for name, item in self.value.items()}

    def fields(self, names: Collection[str]) -> "dict[str, Part]":
        """The parts of an object that has exactly these names."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"must be an object {self.got()}")
        for name in names:
            if name not in self.value:
                raise self.wrong(f"{name} is missing")
        for name in self.value:
            if name not in names:
                raise self.wrong(f"unknown name {reprlib.repr(name)}{nearest(name, names)}")
        return self.mapping()

    def items(self) -> "list[Part]":
        """The parts of a list."""
        if not isinstance(self.value, list):
            raise self.wrong(f"must be a list {self.got()}")
        *before, last = self.path or ("",)
        return [
            Part(item, self.document, (*before, f"{last}[{number}]"))
            for number, item in enumerate(self.value)
        ]

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.wrong(f"must be a text {self.got()}")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(item.text() for item in self.items())

    def plain(self, depth: int = 0) -> Any:
        """Whatever JSON holds, with no number beyond what the computer's floating point holds."""
        if depth > DEEPEST:
            raise self.wrong("is nested too deeply")
        if isinstance(self.value, dict):
            return {name: item.plain(depth + 1) for name, item in self.mapping().items()}
        if isinstance(self.value, list):
            return [item.plain(depth + 1) for item in self.items()]
        return self.scalar()

    def scalar(self) -> Any:
        """A number, a text, true, false or null."""
        if isinstance(self.value, dict | list):
            raise self.wrong(f"must be a number or a text {self.got()}")
        largest = LARGEST if isinstance(self.value, float) else LARGEST_WHOLE
        if isinstance(self.value, float | int) and abs(self.value) > largest:
            raise self.wrong("is a number too large")
        return self.value

    def array(self, num_axes: int) -> np.ndarray:
        """Nested lists of numbers as an array: NaN, or -1 among indices, for null.

        Whole numbers stay whole where none is null or negative, or where they are indices by their name.
        """
        cells, shape = self._cells(num_axes)
        kinds = set(map(type, cells))
        if not kinds <= {int, float, type(None)}:
            stranger = next(cell for cell in cells if type(cell) not in (int, float, type(None)))
            if isinstance(stranger, list):
                raise self.wrong(f"has {num_axes} axes but values of {num_axes + _depth(stranger)}")
            raise self.wrong(f"holds {reprlib.repr(stranger)} where a number belongs")
        is_index = self.path[-1].endswith(INDEX_SUFFIXES) and float not in kinds
        if is_index or (kinds == {int} and min(cells) >= 0):
            cells = [-1 if cell is None else cell for cell in cells]
            if not -1 <= min(cells) <= max(cells) <= LARGEST_WHOLE:
                raise self.wrong("holds a number that is too large, or a negative index")
            return np.array(cells, dtype=np.int64).reshape(shape)
        try:
            numbers = np.array(cells, dtype=np.float64)
        except OverflowError:
            raise self.wrong("holds a number too large") from None
        if (np.abs(numbers) > LARGEST).any():
            raise self.wrong("holds a number too large")
        return numbers.reshape(shape)

    def _cells(self, num_axes: int) -> tuple[list[Any], tuple[int, ...]]:
        """The innermost values of so many levels of lists, which must be full boxes, and their shape."""
        cells: list[Any] = [self.value]
        shape: tuple[int, ...] = ()
        for level in range(num_axes):
            if not all(isinstance(cell, list) for cell in cells):
                raise self.wrong(f"has {num_axes} axes but values of {level}")
            size = len(cells[0])
            if size == 0:
                raise self.wrong("holds an empty list")
            if any(len(cell) != size for cell in cells):
                raise self.wrong("has rows of unequal length")
            shape, cells = (*shape, size), list(chain.from_iterable(cells))
        return cells, shape


def is_plain_name(name: str) -> bool:
    """Whether a name is of a sensible length, with no character that moves or hides anything."""
    return name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _depth(value: Any) -> int:
    """How many lists stand in one another, as far as the first of each shows."""
    depth = 0
    while isinstance(value, list) and depth < DEEPEST:
        depth, value = depth + 1, value[0] if value else None
    return depth
