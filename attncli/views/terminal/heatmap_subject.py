"""What a picture shows: the matrices of a tensor, their numbers, and their two sides with labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attncli.report import Report
from attncli.views.matrices import KEY_AXES, Matrix
from attncli.views.sides import Side, sides_of


@dataclass(frozen=True)
class Subject:
    """What is drawn: matrices of one tensor, the sides they share, and the keys that are left out.

    `compared`: matrices of other tensors, which share their colours with these.
    """

    matrices: Sequence[Matrix]
    rows: Side
    columns: Side
    skipped: int
    compared: Sequence[Matrix] = ()

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


def subject_of(
    report: Report, matrices: Sequence[Matrix], skip_sink: int, compared: Sequence[Matrix]
) -> Subject:
    """The matrices of one tensor; of keys the first are left out, as whole blocks where they are pooled."""
    rows, columns = sides_of(report, matrices[0])
    skipped = min(-(-skip_sink // columns.step), columns.count) if columns.name in KEY_AXES else 0
    return Subject(matrices, rows, columns, skipped, compared)


def numbers_of(matrix: Matrix, skipped: int) -> np.ndarray:
    """The matrix in floating point, NaN for no number and for the first keys that are skipped."""
    values = matrix.drawn
    no_number = values < 0 if np.issubdtype(values.dtype, np.integer) else ~np.isfinite(values)
    numbers = np.where(no_number, np.nan, values).astype(np.float64)
    numbers[:, :skipped] = np.nan
    return numbers
