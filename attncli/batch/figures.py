"""The statistics of reports as numbers, each with its layer, head and name, as in the tidy table.

Row statistics come as their mean, minimum and maximum over the queries (and over a batch) of each head; what
is no number there is excluded from these.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from attncli.batch.columns import (
    Columns,
    GridShape,
    RowShape,
    ScalarShape,
    Shape,
    SurveyShape,
    columns_of_shapes,
)
from attncli.experiments.together import OwnPart
from attncli.report import PLACES, NamedTensor, Numbers, Report, Row, Statistic, Table, Tensors

# Keys named by rank, and what is made of the rows for people, are no statistics of their own.
LEFT_OUT = ("top_keys", "top_weights", "quantiles", "extremes")


class FigureTable(NamedTuple):
    """The numbers of the reports at these places, a row each in float64; NaN where there is no number."""

    columns: Columns
    places: list[int]
    values: np.ndarray


def figure_tables(reports: Sequence[Report], *, rows: bool = False) -> list[FigureTable]:
    """The numbers of reports. With `rows` every row's statistic comes, too.

    Reports that were computed together share a table, made from the arrays that they share.
    """
    together: dict[int, list[int]] = {}
    for place, report in enumerate(reports):
        statistics = report.statistics
        shared = id(statistics.whole) if isinstance(statistics, OwnPart) else -1 - place
        together.setdefault(shared, []).append(place)
    tables = []
    for places in together.values():
        leaves = list(_leaves([reports[place] for place in places], rows))
        parts = [leaf.values for leaf in leaves]
        values = np.concatenate(parts, axis=1) if parts else np.empty((len(places), 0))
        values[~np.isfinite(values)] = np.nan
        tables.append(FigureTable(columns_of_shapes(tuple(leaf.shape for leaf in leaves)), places, values))
    return tables


def joined(tables: Sequence[FigureTable]) -> FigureTable:
    """Tables of the same columns as one."""
    if len(tables) == 1:
        return tables[0]
    places = [place for table in tables for place in table.places]
    return FigureTable(tables[0].columns, places, np.concatenate([table.values for table in tables]))


def figures_of(report: Report, *, rows: bool = False) -> tuple[Columns, np.ndarray]:
    """The columns of a report, and as many numbers."""
    ((columns, _, values),) = figure_tables([report], rows=rows)
    return columns, values[0]


class Leaf(NamedTuple):
    """The numbers of some reports under one name (report, column), and what their columns follow from."""

    shape: Shape
    values: np.ndarray


def _leaves(reports: Sequence[Report], rows: bool) -> Iterator[Leaf]:
    """The leaves of one report, or of several that are parts of the same whole."""
    first = reports[0]
    statistics, tensors = first.statistics, first.tensors
    members = None
    if isinstance(statistics, OwnPart) and isinstance(tensors, OwnPart):
        members = [report.statistics.place for report in reports if isinstance(report.statistics, OwnPart)]
        statistics, tensors = statistics.whole, tensors.whole
    walk = _Walk(first.spec.get("layer"), first.spec.get("head"), members, rows)
    for name, value in statistics.items():
        if name == "heads" and isinstance(value, Table):
            yield _survey(value, len(reports))
        elif name not in LEFT_OUT:
            yield from walk.leaves(name, value)
    for name, tensor in tensors.items():
        if walk.axes(tensor) == PLACES:
            yield _grid_leaf(name, walk.values(tensor))


class _Walk(NamedTuple):
    """What holds for all statistics of a report, or of the members of a whole with an axis for them."""

    layer: int | None
    head: int | None
    members: list[int] | None
    rows: bool

    def axes(self, tensor: NamedTensor) -> tuple[str, ...]:
        """The axes after that of the members."""
        assert self.members is None or tensor.axes[0] == "batch", tensor.axes
        return tensor.axes if self.members is None else tensor.axes[1:]

    def values(self, tensor: NamedTensor) -> np.ndarray:
        """The numbers of each member."""
        if self.members is None:
            return tensor.values[None]
        is_whole = self.members == list(range(len(tensor.values)))
        return tensor.values if is_whole else tensor.values[self.members]

    def leaves(self, group: str, found: Statistic) -> Iterator[Leaf]:
        """Every number of a group of statistics; those of rows and keys by their own name alone."""
        if isinstance(found, Tensors):
            for name, tensor in found.items():
                if axes := self.axes(tensor):
                    yield from () if name in LEFT_OUT else [self._row_leaf(name, axes, self.values(tensor))]
                else:
                    yield self._scalar_leaf(f"{group}.{name}", self.values(tensor))
        elif isinstance(found, Numbers):
            yield from self._scalar_leaves(group, found)
        else:
            for number, row in enumerate(found):
                yield from self._scalar_leaves(f"{group}.{number}", row)

    def _scalar_leaves(self, before: str, cells: Row) -> Iterator[Leaf]:
        count = 1 if self.members is None else len(self.members)
        for name, cell in cells.items():
            listed = {f".{i}": item for i, item in enumerate(cell)} if isinstance(cell, list) else {"": cell}
            for place, item in listed.items():
                if not isinstance(item, str):
                    numbers = np.full(count, np.nan if item is None else item)
                    yield self._scalar_leaf(f"{before}.{name}{place}", numbers)

    def _scalar_leaf(self, name: str, values: np.ndarray) -> Leaf:
        return Leaf(ScalarShape(name, self.layer, self.head), values.astype(np.float64)[:, None])

    def _row_leaf(self, name: str, axes: tuple[str, ...], values: np.ndarray) -> Leaf:
        count = len(values)
        num_heads = values.shape[1 + axes.index("head")] if "head" in axes else None
        by_head = values[:, None] if num_heads is None else np.moveaxis(values, 1 + axes.index("head"), 1)
        num_batches = by_head.shape[2] if "batch" in axes else None
        # Last axis whole and in one piece, so that a sum is added up in the same order in any company.
        flat = np.ascontiguousarray(by_head, dtype=np.float64).reshape(count, num_heads or 1, -1)
        summaries = _summaries(flat).reshape(count, -1)
        if not self.rows:
            return Leaf(RowShape(name, self.layer, self.head, num_heads), summaries)
        num_tokens = flat.shape[2] // (num_batches or 1)
        shape = RowShape(name, self.layer, self.head, num_heads, num_batches, num_tokens)
        return Leaf(shape, np.concatenate([summaries, flat.reshape(count, -1)], axis=1))


def _grid_leaf(name: str, values: np.ndarray) -> Leaf:
    num_layers, num_heads = values.shape[1:]
    return Leaf(GridShape(name, num_layers, num_heads), values.reshape(len(values), -1))


@lru_cache(maxsize=256)
def _names_of_numbers(names: tuple[str, ...], types: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for name, of_type in zip(names, types, strict=True)
        if name not in PLACES and issubclass(of_type, int | float)
    )


def _survey(heads: Table, num_reports: int) -> Leaf:
    """The numbers of a survey of heads; a stack and kind go into the name where there are several."""
    several = len({row["stack"] for row in heads}) > 1
    shape: list[Any] = []
    numbers: list[Any] = []
    for row in heads:
        names = _names_of_numbers(tuple(row), tuple(map(type, row.values())))
        stack = "decoder" if row["stack"] == "cross" else row["stack"]
        prefix = f"{stack}.{row['kind']}." if several else ""
        shape.append((row["layer"], row["head"], prefix, names))
        numbers += [row[name] for name in names]
    return Leaf(SurveyShape(tuple(shape)), np.array([numbers] * num_reports, dtype=np.float64))


def _summaries(flat: np.ndarray) -> np.ndarray:
    """Mean, minimum and maximum over the last axis, without what is no number; NaN where nothing is one."""
    known = np.isfinite(flat)
    if known.all():
        return np.stack([flat.mean(axis=-1), flat.min(axis=-1), flat.max(axis=-1)], axis=-1)
    counts = known.sum(axis=-1)
    sums = np.where(known, flat, 0.0).sum(axis=-1)
    means = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    least = np.where(known, flat, np.inf).min(axis=-1)
    most = np.where(known, flat, -np.inf).max(axis=-1)
    return np.stack([means, least, most], axis=-1)
