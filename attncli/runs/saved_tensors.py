"""Tensors in saved reports: lists, or the contents of an array file, with axes, mask and scale."""

import reprlib
from itertools import chain
from types import NoneType
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, StrictBool, WithJsonSchema
from pydantic.dataclasses import dataclass as checked

from attncli.models.arrays import LARGEST
from attncli.records.values import AXES, MAPS, Mask, NamedTensor

LARGEST_WHOLE = 2**63 - 1


def as_array(values: Any, num_axes: int) -> np.ndarray:
    """Convert lists nested `num_axes` deep to an array; null becomes NaN, or -1 among whole numbers.

    Whole numbers stay whole if none is negative. If the values are already an array, the same rules apply.
    """
    if isinstance(values, np.ndarray):
        return _checked(values, num_axes)
    cells, shape = _cells(values, num_axes)
    kinds = set(map(type, cells))
    if not kinds <= {int, float, NoneType}:
        stranger = next(cell for cell in cells if type(cell) not in (int, float, NoneType))
        raise ValueError(
            f"has {num_axes} axes, but its values have more"
            if isinstance(stranger, list)
            else f"holds {reprlib.repr(stranger)} instead of a number"
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
        raise ValueError(f"has {num_axes} axes, but its values have {array.ndim}")
    if array.size == 0:
        raise ValueError("holds an empty list")
    if (np.abs(array[np.isfinite(array)]) > np.float64(LARGEST)).any():
        raise ValueError("holds a number too large")
    return array


def _cells(values: Any, num_axes: int) -> tuple[list[Any], tuple[int, ...]]:
    """Return the innermost values and the shape; the lists at each level must have equal lengths."""
    cells: list[Any] = [values]
    shape: tuple[int, ...] = ()
    for level in range(num_axes):
        if not all(isinstance(cell, list) for cell in cells):
            raise ValueError(f"has {num_axes} axes, but its values have {level}")
        size = len(cells[0])
        if size == 0:
            raise ValueError("holds an empty list")
        if any(len(cell) != size for cell in cells):
            raise ValueError("has rows of unequal length")
        shape, cells = (*shape, size), list(chain.from_iterable(cells))
    return cells, shape


def _checked_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    for axis in axes:
        if axis not in AXES:
            raise ValueError(f"unknown axis {axis!r:.40}: must be one of {', '.join(AXES)}")
    if len(set(axes)) < len(axes) or not axes:
        raise ValueError(
            f"must name at least one axis, and each axis only once (got {', '.join(axes) or 'none'})"
        )
    return axes


# JSON Schema for the checks above that annotations do not express; it cannot require matching sizes.
NUMBER, CELL = {"type": ["number", "null"]}, {"type": ["number", "string", "boolean", "null"]}
NESTED = {"$ref": "#/$defs/Nested"}
NESTED_SCHEMA = {"type": "array", "minItems": 1, "items": {"anyOf": [NUMBER, NESTED]}}
AXES_SCHEMA = {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": [*AXES]}}
Axes = Annotated[tuple[str, ...], AfterValidator(_checked_axes), WithJsonSchema(AXES_SCHEMA)]
EXACT = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


def _num_axes(values: Any) -> int:
    """Return the nesting depth of lists, judged by the first element of each."""
    if isinstance(values, np.ndarray):
        return values.ndim
    return 1 + _num_axes(values[0]) if isinstance(values, list) and values else 0


def _visible_keys(values: Any) -> np.ndarray | None:
    """Return 1 for a visible key and 0 for a hidden one. Raises ValueError for anything else."""
    if values is None:
        return None
    visible = as_array(values, max(2, _num_axes(values)))
    if not np.isin(visible, (0, 1)).all():
        raise ValueError("must hold only 1 (visible) and 0 (hidden)")
    return visible.astype(np.uint8)


@checked(frozen=True, config=EXACT)
class SavedMask(Mask):
    """A mask in JSON."""

    causal: StrictBool = False
    window: Annotated[int, Field(strict=True, gt=0, le=LARGEST_WHOLE)] | None = None
    visible: Annotated[Any, AfterValidator(_visible_keys)] = None


@checked(frozen=True, config=EXACT)
class SavedTensor(NamedTensor):
    """A tensor in JSON: either lists, with null for a missing number, or an array from a file."""

    axes: Axes
    values: Any
    mask: SavedMask | None = None
    scale: FiniteFloat | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", as_array(self.values, len(self.axes)))
        if self.mask is not None:
            _check_mask(self.mask, self.axes, self.values.shape)

    def unchecked(self) -> NamedTensor:
        """Return the tensor without validation."""
        mask = None if self.mask is None else Mask(self.mask.causal, self.mask.window, self.mask.visible)
        return NamedTensor(self.axes, self.values, mask, self.scale)


def _check_mask(mask: Mask, axes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    """Raise ValueError if the mask does not fit the tensor."""
    if axes[-2:] not in MAPS:
        raise ValueError(f"axes must end in query, key (got {', '.join(axes)})")
    if mask.visible is None:
        return
    sizes = mask.visible.shape
    leading = zip(sizes[:-2], shape[-len(sizes) : -2], strict=False)
    if sizes[-2:] != shape[-2:] or len(sizes) > len(shape) or any(i not in (1, j) for i, j in leading):
        raise ValueError(f"mask.visible: must have the same sizes as the values, {shape} (got {sizes})")
