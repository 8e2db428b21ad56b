"""As much of a matrix as a first screen holds, as a table; and what of it is left out."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from attncli.report import Report
from attncli.views import Display
from attncli.views.matrices import Matrix
from attncli.views.numbers import NO_NUMBER
from attncli.views.tables.elements import GAP, Column, Grid, TableLabels
from attncli.views.tables.tensor_tables import largest_keys, number_columns

MOST_ROWS, FIRST_ROWS = 10, 8  # Rows up to which a matrix is whole, and the first of longer ones.
COLUMN_WIDTHS = (9, 8, 7, 6, 5)  # Terminal cells of a token above a column, tried until all columns fit.
CUT_WIDTH, CUT_LABEL = 7, 12  # Cells of tokens where not all columns fit.
LEAST_WIDTH = 6  # Cells that a column takes at least, with the gap before it.
MANY_KEYS = 50  # From here on weights are small enough for a decimal more.
MOST_AT = ("most", "at")
PLACE_NAMES = {"batch": "sequence"}
PLURALS = {"query": "queries"}


class MatrixPart:
    """The rows and columns of a matrix that fit the display; of several of one size the same rows each."""

    def __init__(
        self,
        report: Report,
        matrices: Mapping[str, Matrix],
        display: Display,
        title: str,
        most: int = MOST_ROWS,
    ) -> None:
        self.names, self.title = list(matrices), title
        first = next(iter(matrices.values()))
        self.axes = first.axes
        self.width = display.width or 0
        self.labels = TableLabels(report, display)
        self.num_queries, self.num_keys = first.values.shape
        self.precision = display.precision + (self.num_keys > MANY_KEYS)
        self.rows = self.num_queries if self.num_queries <= most else min(most, FIRST_ROWS)
        self.values = np.concatenate([matrix.drawn[: self.rows] for matrix in matrices.values()])
        self.largest = largest_keys(self.values)
        self.grid = self._whole() or self._cut()

    def _whole(self) -> Grid | None:
        """Every key, with as much of its token as there is room for; None where they do not fit."""
        if self.num_keys * LEAST_WIDTH > self.width:
            return None
        for width in COLUMN_WIDTHS:
            self.labels.column_width = width
            grid = Grid(self.title, self._label(), self._columns())
            if grid.fits(self.width):
                return grid
        return None

    def _cut(self) -> Grid:
        """The first keys that fit, and beside them the key that each query looks at most."""
        self.labels.column_width = CUT_WIDTH
        self.labels.row_width = min(CUT_LABEL, self.labels.row_width or 0)
        label = self._label()
        most = [
            self.labels.place(self.axes[1], int(key)) if np.isfinite(row[key]) else NO_NUMBER
            for key, row in zip(self.largest, self.values, strict=True)
        ]
        last = Column(MOST_AT, most, left=True)
        first = Grid(self.title, label, self._columns()).first_group(self.width - last.width - GAP)
        return replace(first, columns=[*first.columns, last])

    def _label(self) -> Column:
        label = self.labels.rows(self.axes[0], self.num_queries)
        cells = [f"{name} {cell}".strip() for name in self.names for cell in label.cells[: self.rows]]
        return replace(label, cells=cells)

    def _columns(self) -> list[Column]:
        headers = self.labels.columns(self.axes[1], self.num_keys)[: self.width // LEAST_WIDTH]
        return number_columns(headers, self.values, self.precision)

    def left_out(self, sizes: Mapping[str, int] | None = None) -> Iterator[str]:
        """`queries 10-199`: what is not shown; `sizes` of the leading axes, of which place 0 is shown."""
        num_columns = len(self.grid.columns) - (self.grid.columns[-1].header == MOST_AT)
        shown = {name: (1, size) for name, size in (sizes or {}).items()}
        shown |= {self.axes[0]: (self.rows, self.num_queries), self.axes[1]: (num_columns, self.num_keys)}
        for axis, (first, count) in shown.items():
            noun = PLACE_NAMES.get(axis, axis)
            if first < count:
                last = count - 1
                yield (
                    f"{noun} {first}" if first == last else f"{PLURALS.get(noun, f'{noun}s')} {first}-{last}"
                )
