"""The two sides of a matrix as its picture labels them."""

from dataclasses import replace

import numpy as np

from attncli.report import NamedTensor, Report
from attncli.views.axis_labels import Side
from attncli.views.matrices import Matrix

BLOCK_AXES = {"query_block": "query", "key_block": "key"}


def sides_of(report: Report, matrix: Matrix) -> tuple[Side, Side]:
    """Rows and columns with their tokens; an axis of blocks counts the positions in them."""
    rows, columns = (
        Side(
            axis, count, tokens, noun="context token" if axis == "key" and report.context_tokens else "token"
        )
        for axis, count, tokens in zip(
            matrix.axes, matrix.values.shape, (matrix.rows, matrix.columns), strict=True
        )
    )
    return _in_positions(report, rows), _in_positions(report, columns)


def _in_positions(report: Report, side: Side) -> Side:
    if side.name not in BLOCK_AXES:
        return side
    num_positions = _length(report, BLOCK_AXES[side.name])
    if not num_positions:
        return side
    return replace(side, step=-(-num_positions // side.count), positions=num_positions)


def _length(report: Report, axis: str) -> int:
    """How many queries or keys there were: there is a number, or a token, for each."""
    group = report.statistics.get("rows" if axis == "query" else "keys", {})
    for tensor in group.values():
        if isinstance(tensor, NamedTensor) and tensor.axes[-1] == axis:
            return int(tensor.values.shape[-1])
    return len(report.context_tokens or report.tokens) if axis == "key" else len(report.tokens)


def numbers_of(matrix: Matrix, skipped: int) -> np.ndarray:
    """The matrix in floating point, NaN for no number and for the first keys that are skipped."""
    values = matrix.values
    no_number = values < 0 if np.issubdtype(values.dtype, np.integer) else ~np.isfinite(values)
    numbers = np.where(no_number, np.nan, values).astype(np.float64)
    numbers[:, :skipped] = np.nan
    return numbers
