"""The tensors of a report as tables; as a drawing where a table would be too wide."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from attncli.report import NamedTensor, Report, Tensors
from attncli.views import Display
from attncli.views.matrices import Matrix, matrices, place_names
from attncli.views.numbers import fixed
from attncli.views.tables.elements import Column, Drawing, Grid, Section, TableLabels, split_header
from attncli.views.terminal.heatmap_figure import draw

MAX_GROUPS = 8
MAX_CELLS = 50_000
MAX_VECTOR_ROWS = 24
MAX_VECTOR_COLUMNS = 64
MAX_EXAMPLE_ROWS = 6
ROUNDING = 1e-6
RANKED = ("top_keys", "top_weights")


def largest_keys(values: np.ndarray) -> np.ndarray:
    """The place of the largest number of each row, the first of those that differ only by rounding."""
    numbers = np.where(np.isfinite(values), values, -np.inf)
    top = numbers.max(axis=1, keepdims=True)
    largest: np.ndarray = (numbers >= top - ROUNDING * np.abs(top)).argmax(axis=1)
    return largest


def number_columns(
    headers: Sequence[tuple[str, str]], values: np.ndarray, precision: int, footer: Sequence[float] = ()
) -> list[Column]:
    """A column for each header, the largest of each row emphasised, with a number of the footer below."""
    largest = largest_keys(values)
    return [
        Column(
            header,
            [fixed(number, precision) for number in (*values[:, j], *footer[j : j + 1])],
            emphasis=frozenset(np.flatnonzero(largest == j).tolist()),
        )
        for j, header in enumerate(headers)
    ]


class TensorTables:
    """The tables of one report's tensors."""

    def __init__(self, report: Report, display: Display, labels: TableLabels) -> None:
        self.report, self.display, self.labels = report, display, labels
        # Thousands of rows come with their quantiles, which are shown instead.
        self.rows = Tensors() if "quantiles" in report.statistics else report.tensors_of("rows")
        self.with_statistics = self._of_rows()
        self.pairs = self._pairs()

    def sections(self) -> Iterator[Section]:
        """Matrix by matrix; beside or below the weights the statistics of each row."""
        for name, group in groupby(matrices(self.report), key=lambda matrix: matrix.name):
            if name in self.pairs:
                yield from self.pairs[name]
            elif name not in self.report.explained:
                yield from self._matrices(list(group))
        if self.rows and self.with_statistics is None:
            tensor = next(iter(self.rows.values()))
            for index in np.ndindex(tensor.values.shape[:-1]):
                title = ", ".join(["rows", *place_names(zip(tensor.axes[:-1], index, strict=True))])
                label = self.labels.rows("query", tensor.values.shape[-1])
                yield Grid(title, label, self._statistics_of_rows(index))

    def _of_rows(self) -> str | None:
        """The tensor whose rows the statistics are of: not a mean over heads that each have their own."""
        name = "difference" if self.report.experiment == "diff" else "weights"
        whole = self.report.tensors.get(name)
        if whole is None or not self.rows:
            return None
        statistic = next(tensor for rank, tensor in self.rows.items() if rank not in RANKED)
        return name if statistic.axes[:-1] == whole.axes[:-2] else None

    def _pairs(self) -> dict[str, list[Grid]]:
        """The wrong matrix beside the right one in one table, where both fit."""
        found: dict[str, list[Grid]] = {}
        for name, names in self.report.pairs.items():
            wrong, right = (self.report.tensors[side] for side in names)
            is_matrix = wrong.values.ndim == 2 and wrong.values.shape == right.values.shape
            if not is_matrix or wrong.axes[1] == "dim" or wrong.values.size > MAX_CELLS:
                continue
            headers = self.labels.columns(wrong.axes[1], wrong.values.shape[1])
            columns: list[Column] = []
            for side, tensor in (("wrong", wrong), ("right", right)):
                first, *others = number_columns(headers, tensor.values, self.display.precision)
                between = [Column(("",), ["│"] * len(wrong.values))] if columns else []
                columns += [*between, replace(first, header=(side, *first.header)), *others]
            label = self.labels.rows(wrong.axes[0], len(wrong.values))
            grid = Grid(f"{name} ({' × '.join(wrong.axes)}): wrong and right", label, columns)
            if grid.fits(self.display.width):
                found |= {names[0]: [grid], names[1]: []}
        return found

    def _matrices(self, tensor_matrices: Sequence[Matrix]) -> Iterator[Section]:
        is_drawn = False
        for matrix in tensor_matrices:
            if matrix.axes[1] in ("dim", "embed"):
                yield self._vectors(matrix)
                continue
            has_statistics = matrix.name == self.with_statistics
            beside = self._statistics_of_rows(matrix.index) if self.rows and has_statistics else []
            rows = self.labels.rows(matrix.axes[0], len(matrix.values))
            grid = self._grid(matrix, rows, has_statistics)
            if grid is None:
                if not is_drawn:
                    yield self._drawing(tensor_matrices)
                is_drawn = True
            else:
                blank = [""] * (len(grid.label.cells) - len(rows.cells))
                more = [replace(column, cells=[*column.cells, *blank]) for column in beside]
                whole = replace(grid, columns=[*grid.columns, *more])
                if whole.fits(self.display.width):
                    yield whole
                    continue
                yield grid
            if beside:
                yield Grid(f"{matrix.title}: statistics of each row", rows, beside)

    def _grid(self, matrix: Matrix, rows: Column, has_statistics: bool) -> Grid | None:
        """One matrix, with the mass of each key below the weights; None where a table would be too wide."""
        if matrix.values.size > MAX_CELLS:
            return None
        received = self.report.tensors_of("keys").get("received_mass") if has_statistics else None
        footer = [] if received is None else list(received.values[matrix.index])
        label = replace(rows, cells=[*rows.cells, *(["received mass"] if footer else [])])
        headers = self.labels.columns(matrix.axes[1], matrix.values.shape[1])
        grid = Grid(
            matrix.title, label, number_columns(headers, matrix.drawn, self.display.precision, footer)
        )
        count = len(grid.groups(self.display.width))
        is_one_of_a_model = any(axis == "layer" for axis, _ in matrix.place)
        is_map = count > 1 and (matrix.axes[1] == "key_block" or is_one_of_a_model)
        return None if count > MAX_GROUPS or is_map else grid

    def _fixed(self, numbers: Sequence[float] | np.ndarray) -> list[str]:
        return [fixed(number, self.display.precision) for number in numbers]

    def _statistics_of_rows(self, index: tuple[int, ...]) -> list[Column]:
        columns = [
            Column(split_header(name), self._fixed(tensor.values[index]))
            for name, tensor in self.rows.items()
            if name not in RANKED
        ]
        if "top_keys" in self.rows:
            keys, weights = (self.rows[name].values[index] for name in RANKED)
            for rank in range(keys.shape[-1]):
                cells = [self.labels.key(*pair) for pair in zip(keys[:, rank], weights[:, rank], strict=True)]
                columns.append(Column(("", f"top {rank + 1}"), cells, left=True))
        return columns

    def _drawing(self, tensor_matrices: Sequence[Matrix]) -> Drawing:
        """A heatmap of all the matrices of a tensor, in place of tables that would be too wide."""
        figure = draw(self.report, tensor_matrices, self.display)
        name = tensor_matrices[0].name
        title = f"{name}: too wide for a table, so shown as a picture; --format json has it all"
        return Drawing(title, [line.text.rstrip(" ") for line in figure.lines], figure.mentioned)

    def _vectors(self, matrix: Matrix) -> Grid:
        """Vectors as rows: of many dimensions the first that fit, of many examples the first few."""
        num_rows, num_columns = matrix.values.shape
        is_whole = self.display.width is None and matrix.values.size <= MAX_CELLS
        is_of_tokens = matrix.axes[0] in ("token", "query", "key") and num_rows <= MAX_VECTOR_ROWS
        shown_rows = num_rows if is_whole or is_of_tokens else min(num_rows, MAX_EXAMPLE_ROWS)
        label = self.labels.rows(matrix.axes[0], num_rows)
        label = replace(label, cells=label.cells[:shown_rows])
        most = self.display.most_dims or (num_columns if is_whole else MAX_VECTOR_COLUMNS)
        part = matrix.values[:shown_rows, :most]
        columns = [Column(("", str(j)), self._fixed(part[:, j])) for j in range(part.shape[1])]
        groups = Grid("", label, columns).groups(self.display.width)
        shown = columns if len(groups) <= 2 else groups[0]
        limits = [
            f"{count} of {total} {name}"
            for count, total, name in ((shown_rows, num_rows, "rows"), (len(shown), num_columns, "columns"))
            if count < total
        ]
        title = f"{matrix.title}: the first {' and '.join(limits)}" if limits else matrix.title
        return Grid(title, label, shown)

    def lines_of_numbers(self) -> Iterator[Grid]:
        """Tensors of one axis, side by side where they share it; long ones thinned, which is said."""
        by_axis: dict[tuple[str, int], dict[str, NamedTensor]] = {}
        for name, tensor in self.report.tensors.items():
            if tensor.values.ndim == 1 and name not in self.report.explained:
                by_axis.setdefault((tensor.axes[0], len(tensor.values)), {})[name] = tensor
        for (axis, count), tensors in by_axis.items():
            step = -(-count // MAX_VECTOR_ROWS) if self.display.width is not None else 1
            label = self.labels.rows(axis, count)
            columns = [Column(split_header(n), self._fixed(t.values[::step])) for n, t in tensors.items()]
            thinned = f": one row in {step} of {count}" if step > 1 else ""
            title = f"{', '.join(tensors)} ({axis}){thinned}"
            yield Grid(title, replace(label, cells=label.cells[::step]), columns)
