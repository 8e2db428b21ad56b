"""Matrices made smaller: the mean and the maximum of each block of cells.

Blocks have so many rows and columns, fewer at the lower and right edge. What is not finite does not count;
a block without a number is NaN.
"""

import numpy as np


def block_mean(values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The mean of each block."""
    is_number = np.isfinite(values)
    totals = _reduced(np.add, np.where(is_number, values, 0), block)
    counts = _reduced(np.add, is_number.astype(np.int64), block)
    means: np.ndarray = np.divide(totals, counts, where=counts > 0, out=np.full(totals.shape, np.nan))
    return means


def block_maximum(values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The largest number of each block."""
    return _reduced(np.fmax, np.where(np.isfinite(values), values, np.nan), block)


def _reduced(operation: np.ufunc, values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    for axis, size in zip((-2, -1), block, strict=True):
        values = operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values
