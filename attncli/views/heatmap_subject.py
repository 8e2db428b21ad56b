"""What a picture shows: the matrices of a tensor, their numbers, and their two sides with labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.report import Report
from attncli.views.axis_labels import Side
from attncli.views.matrices import Matrix

BLOCK_AXES = {"query_block": "query", "key_block": "key"}


@dataclass(frozen=True)
class Subject:
    """What is drawn: matrices of one tensor, the sides they share, and the keys that are left out."""

    matrices: Sequence[Matrix]
    rows: Side
    columns: Side
    skipped: int

    @property
    def name(self) -> str:
        """The tensor's name and axes."""
        first = self.matrices[0]
        if len(self.matrices) == 1:
            return first.title
        axes = (*(axis for axis, _ in first.place), *first.axes)
        return f"{first.name} ({' × '.join(axes)})"

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of an atlas, where the matrices differ on two axes or more."""
        across = len({matrix.index[-1:] for matrix in self.matrices})
        down = len(self.matrices) // across
        return (down, across) if min(down, across) > 1 else None

    @property
    def varying(self) -> list[int]:
        """Which of the axes before the last two the matrices differ on."""
        places = zip(*(matrix.index for matrix in self.matrices), strict=True)
        return [i for i, numbers in enumerate(places) if len(set(numbers)) > 1]


def subject_of(report: Report, matrices: Sequence[Matrix], skip_sink: int) -> Subject:
    """The matrices of one tensor; of keys the first are left out, as whole blocks where they are pooled."""
    rows, columns = sides_of(report, matrices[0])
    skipped = min(-(-skip_sink // columns.step), columns.count) if columns.name.startswith("key") else 0
    return Subject(matrices, rows, columns, skipped)


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
    for tensor in report.tensors_of("rows" if axis == "query" else "keys").values():
        if tensor.axes[-1] == axis:
            return int(tensor.values.shape[-1])
    return len(report.context_tokens or report.tokens) if axis == "key" else len(report.tokens)


def numbers_of(matrix: Matrix, skipped: int) -> np.ndarray:
    """The matrix in floating point, NaN for no number and for the first keys that are skipped."""
    values = matrix.values
    no_number = values < 0 if np.issubdtype(values.dtype, np.integer) else ~np.isfinite(values)
    numbers = np.where(no_number, np.nan, values).astype(np.float64)
    numbers[:, :skipped] = np.nan
    return numbers
