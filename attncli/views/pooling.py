"""Matrices made smaller: the mean and the maximum of blocks of cells."""

from typing import NamedTuple

import numpy as np


class Pooled(NamedTuple):
    """For each block the mean and the maximum of its numbers; NaN where it has none."""

    mean: np.ndarray
    maximum: np.ndarray


def pooled(values: np.ndarray, block: tuple[int, int]) -> Pooled:
    """Blocks of that many rows and columns, smaller at the lower and right edge. NaN counts for nothing."""
    is_number = np.isfinite(values)
    totals = _reduced(np.add, np.where(is_number, values, 0), block)
    counts = _reduced(np.add, is_number.astype(np.int64), block)
    largest = _reduced(np.maximum, np.where(is_number, values, -np.inf), block)
    mean = np.divide(totals, counts, where=counts > 0, out=np.full(totals.shape, np.nan))
    return Pooled(mean, np.where(counts > 0, largest, np.nan))


def _reduced(operation: np.ufunc, values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    for axis, size in zip((-2, -1), block, strict=True):
        values = operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values
