"""Nested lists of numbers as arrays; ValueError for what is no full box of numbers."""

import reprlib
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

# Beyond it differences and sums of numbers leave what the computer can hold.
LARGEST = 1e200


def as_array(values: Any, num_axes: int) -> np.ndarray:
    """Lists in so many levels as an array: NaN for null, or -1 among whole numbers.

    Whole numbers stay whole where none is negative. An array is held to the same.
    """
    if isinstance(values, np.ndarray):
        return _checked(values, num_axes)
    cells, shape = _cells(values, num_axes)
    kinds = set(map(type, cells))
    if not kinds <= {int, float, NoneType}:
        stranger = next(cell for cell in cells if type(cell) not in (int, float, NoneType))
        raise ValueError(
            f"has {num_axes} axes but values of more"
            if isinstance(stranger, list)
            else f"holds {reprlib.repr(stranger)} where a number belongs"
        )
    is_whole = kinds in ({int}, {int, NoneType}) and min(cell for cell in cells if cell is not None) >= 0
    if is_whole and NoneType in kinds:
        cells = [-1 if cell is None else cell for cell in cells]
    try:
        numbers = np.array(cells, dtype=np.int64 if is_whole else np.float64)
    except OverflowError:
        raise ValueError("holds a number too large") from None
    if (np.abs(numbers) > LARGEST).any():
        raise ValueError("holds a number too large")
    return numbers.reshape(shape)


def _checked(array: np.ndarray, num_axes: int) -> np.ndarray:
    """An array as it was saved."""
    if array.ndim != num_axes:
        raise ValueError(f"has {num_axes} axes but values of {array.ndim}")
    if array.size == 0:
        raise ValueError("holds an empty list")
    if (np.abs(array[np.isfinite(array)]) > np.float64(LARGEST)).any():
        raise ValueError("holds a number too large")
    return array


def _cells(values: Any, num_axes: int) -> tuple[list[Any], tuple[int, ...]]:
    """The innermost values of so many levels of lists, which must be full boxes, and their shape."""
    cells: list[Any] = [values]
    shape: tuple[int, ...] = ()
    for level in range(num_axes):
        if not all(isinstance(cell, list) for cell in cells):
            raise ValueError(f"has {num_axes} axes but values of {level}")
        size = len(cells[0])
        if size == 0:
            raise ValueError("holds an empty list")
        if any(len(cell) != size for cell in cells):
            raise ValueError("has rows of unequal length")
        shape, cells = (*shape, size), list(chain.from_iterable(cells))
    return cells, shape
