"""The tensors of a saved report: nested lists as arrays, and sizes that must match.

A ValueError says what is wrong, with the place in front where it is known here.
"""

import reprlib
from collections.abc import Mapping
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from attncli.report import NamedTensor, Report, Statistic, Tensors

LARGEST = 1e200
"""Beyond it, differences and sums of numbers overflow."""
RANKED = ("top_keys", "top_weights")
# The axis that each group of tensors runs along, and the axis of the weights that it lacks.
GROUPS = {"rows": ("query", "key"), "keys": ("key", "query")}


def as_array(values: Any, num_axes: int) -> np.ndarray:
    """Lists nested `num_axes` deep as an array; null is NaN, or -1 among whole numbers.

    Whole numbers stay whole where none is negative. An array has to meet the same conditions.
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
    if array.ndim != num_axes:
        raise ValueError(f"has {num_axes} axes but values of {array.ndim}")
    if array.size == 0:
        raise ValueError("holds an empty list")
    if (np.abs(array[np.isfinite(array)]) > np.float64(LARGEST)).any():
        raise ValueError("holds a number too large")
    return array


def _cells(values: Any, num_axes: int) -> tuple[list[Any], tuple[int, ...]]:
    """The innermost values, and the shape; at every level the lists must have equal lengths."""
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


def with_axes(
    statistics: Mapping[str, Any], axes: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> dict[str, Statistic]:
    """The statistics, with each mapping of lists turned into tensors that have the axes of the same names."""
    groups = {name for name, value in statistics.items() if type(value) is dict}
    if wrong := sorted(groups ^ axes.keys() | groups - GROUPS.keys()):
        raise ValueError(
            f"statistic_axes: {wrong[0]} is missing, or is no group of tensors among the statistics"
        )
    return {
        name: _tensors(name, value, axes[name]) if name in groups else value
        for name, value in statistics.items()
    }


def _tensors(group: str, values: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Tensors:
    """One number per query (or key) of each batch and head; for ranked keys, one per rank."""
    if wrong := sorted(values.keys() ^ axes.keys()):
        raise ValueError(f"statistic_axes.{group}: {wrong[0]} is missing, or unknown")
    found = Tensors()
    for name, numbers in values.items():
        last = (GROUPS[group][0], "rank") if name in RANKED else GROUPS[group][:1]
        if axes[name][-len(last) :] != last:
            got = ", ".join(axes[name])
            raise ValueError(f"statistic_axes.{group}.{name}: must end in {', '.join(last)} (got {got})")
        try:
            found[name] = NamedTensor(axes[name], as_array(numbers, len(axes[name])))
        except ValueError as error:
            raise ValueError(f"statistics.{group}.{name}: {error}") from None
    return found


def check_sizes(report: Report) -> None:
    """Every axis must be as long as there are tokens, weights, or other statistics of its group."""
    groups = {group: report.tensors_of(group) for group in GROUPS}
    tensors = {f"tensors.{name}": tensor for name, tensor in report.tensors.items()}
    for group, members in groups.items():
        tensors |= {f"statistics.{group}.{name}": tensor for name, tensor in members.items()}
    num_keys = len(report.context_tokens or report.tokens)
    num_queries = len(report.tokens[report.first_query :])
    tokens = {"query": num_queries, "token": len(report.tokens), "key": num_keys}
    for place, tensor in tensors.items():
        for axis, size in zip(tensor.axes, tensor.values.shape, strict=True):
            if tokens.get(axis, 0) not in (0, size):
                raise ValueError(f"{place}: has {size} along {axis}, and there are {tokens[axis]} tokens")
    weights = report.tensors.get("weights")
    if weights is not None and weights.axes[-2:] != ("query", "key"):
        raise ValueError(f"tensors.weights: axes must end in query, key (got {', '.join(weights.axes)})")
    for group, members in groups.items():
        known = {"weights": weights} if weights is not None else {}
        sizes = [_sizes(tensor, GROUPS[group][1]) for tensor in (*known.values(), *members.values())]
        for name, own in zip((*known, *members), sizes, strict=True):
            if own != sizes[0]:
                wanted = ", ".join(f"{axis} {size}" for axis, size in sizes[0])
                raise ValueError(
                    f"statistics.{group}.{name}: must have the axes {wanted}, as what it belongs to"
                )
    if any(name in groups["rows"] for name in RANKED):
        _check_ranks(groups["rows"], num_keys if weights is None else weights.values.shape[-1])


def _sizes(tensor: NamedTensor, without: str) -> list[tuple[str, int]]:
    sizes = zip(tensor.axes, tensor.values.shape, strict=True)
    return [(axis, size) for axis, size in sizes if axis not in (without, "rank")]


def _check_ranks(rows: Tensors, num_keys: int) -> None:
    for name in RANKED:
        if name not in rows:
            raise ValueError(f"statistics.rows: {name} is missing: {' and '.join(RANKED)} come together")
    keys, weights = (rows[name].values for name in RANKED)
    if keys.shape != weights.shape:
        raise ValueError("statistics.rows.top_weights: must have the size of top_keys")
    if not np.issubdtype(keys.dtype, np.integer):
        raise ValueError("statistics.rows.top_keys: must hold whole numbers: indices of keys")
    if num_keys and keys.max() >= num_keys:
        raise ValueError(f"statistics.rows.top_keys: names a key beyond the {num_keys} keys")
