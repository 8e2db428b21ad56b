"""The figures of reports: every statistic as a number with its layer, head and name, as in the tidy table.

Row statistics come as their mean, minimum and maximum over the queries (and over a batch) of each head;
what is no number there is left out of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attncli.report import NamedTensor, Report

SUMMARIES = ("mean", "min", "max")
# Keys named by rank, and what is made of the rows for people, are no statistics of their own.
LEFT_OUT = ("top_keys", "top_weights", "quantiles", "extremes")
PLACES = ("layer", "head")


class Column(NamedTuple):
    """What one figure is; `token` is the query of a row statistic, or the key of received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


class Leaf(NamedTuple):
    """Numbers of a report under one name; axes name theirs, and a scalar has none."""

    name: str
    axes: tuple[str, ...]
    values: Any
    layer: int | None
    head: int | None


Columns = tuple[Column, ...]


def figures_of(reports: Sequence[Report], *, rows: bool = False) -> list[tuple[Columns, np.ndarray]]:
    """For each report its columns and as many float64 figures (NaN for no number).

    Reports of equal shapes are summarised together. With `rows` every row's statistic comes, too.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, list[Leaf]]]] = {}
    for number, report in enumerate(reports):
        leaves = list(_leaves(report))
        shapes = tuple((leaf.name, leaf.layer, leaf.head, np.shape(leaf.values)) for leaf in leaves)
        groups.setdefault(shapes, []).append((number, leaves))
    found: dict[int, tuple[Columns, np.ndarray]] = {}
    for members in groups.values():
        columns: list[Column] = []
        parts: list[np.ndarray] = []
        for leaves_alike in zip(*(leaves for _, leaves in members), strict=True):
            stacked = np.array([leaf.values for leaf in leaves_alike], dtype=np.float64)
            for more_columns, values in _columns(leaves_alike[0], stacked, rows):
                columns += more_columns
                parts.append(values)
        table = np.concatenate(parts, axis=1) if parts else np.empty((len(members), 0))
        table[~np.isfinite(table)] = np.nan
        shared = tuple(columns)
        found |= {number: (shared, table[i]) for i, (number, _) in enumerate(members)}
    return [found[number] for number in range(len(reports))]


def _leaves(report: Report) -> Iterator[Leaf]:
    layer, head = (report.spec.get(place) for place in PLACES)
    for name, value in report.statistics.items():
        if name == "heads":
            yield from _head_leaves(value)
        elif name not in LEFT_OUT:
            # rows and keys are where a statistic stands in a report; its name is enough of a name.
            yield from _walk("" if name in ("rows", "keys") else name, value, layer, head)
    for name, tensor in report.tensors.items():
        if tensor.axes == PLACES:
            yield Leaf(name, tensor.axes, tensor.values, None, None)


def _walk(name: str, value: Any, layer: int | None, head: int | None) -> Iterator[Leaf]:
    if type(value) is float:  # most are, and abstract types are slow to ask
        yield Leaf(name, (), value, layer, head)
    elif isinstance(value, NamedTensor):
        yield Leaf(name, value.axes, value.values, layer, head)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in LEFT_OUT:
                yield from _walk(f"{name}.{key}" if name else key, item, layer, head)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(f"{name}.{number}", item, layer, head)
    elif value is None or isinstance(value, int | float):
        yield Leaf(name, (), np.nan if value is None else value, layer, head)


def _head_leaves(rows: Sequence[Mapping[str, Any]]) -> Iterator[Leaf]:
    """The figures of a survey of heads; a stack and kind go into the name where there are several."""
    stacks = [f"{row['module'].split('.')[0]}.{row['kind']}" for row in rows]
    several = len({row["kind"] for row in rows}) > 1
    for stack, row in zip(stacks, rows, strict=True):
        for name, value in row.items():
            if name not in PLACES and isinstance(value, int | float):
                yield Leaf(f"{stack}.{name}" if several else name, (), value, row["layer"], row["head"])


def _columns(leaf: Leaf, stacked: np.ndarray, rows: bool) -> Iterator[tuple[list[Column], np.ndarray]]:
    """The columns of a leaf, with the figures (report, column) of the stacked leaves."""
    if leaf.axes == PLACES:
        layers, heads = leaf.values.shape
        yield (
            [Column(leaf.name, layer, head) for layer in range(layers) for head in range(heads)],
            stacked.reshape(len(stacked), -1),
        )
    elif not leaf.axes:
        yield [Column(leaf.name, leaf.layer, leaf.head)], stacked[:, None]
    else:
        yield from _rows(leaf, stacked, rows)


def _rows(leaf: Leaf, stacked: np.ndarray, rows: bool) -> Iterator[tuple[list[Column], np.ndarray]]:
    """Mean, minimum and maximum of each head, and with `rows` every number."""
    head_axis = leaf.axes.index("head") if "head" in leaf.axes else None
    by_head = stacked[:, None] if head_axis is None else np.moveaxis(stacked, head_axis + 1, 1)
    heads = [leaf.head] if head_axis is None else list(range(by_head.shape[1]))
    # Last axis whole and in one piece, so that a sum is added up in the same order in any company.
    flat = np.ascontiguousarray(by_head.reshape(len(stacked), len(heads), -1))
    columns = [Column(f"{leaf.name}.{how}", leaf.layer, head) for head in heads for how in SUMMARIES]
    yield columns, _summaries(flat).reshape(len(stacked), -1)
    if not rows:
        return
    has_batch = "batch" in leaf.axes
    num_batches = by_head.shape[2] if has_batch else 1
    num_tokens = flat.shape[2] // num_batches
    yield (
        [
            Column(leaf.name, leaf.layer, head, batch if has_batch else None, token)
            for head in heads
            for batch in range(num_batches)
            for token in range(num_tokens)
        ],
        flat.reshape(len(stacked), -1),
    )


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
