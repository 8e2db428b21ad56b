"""Differences between two sets of weights or two surveys of heads, aligned by their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch

from attncli.core.names import HEAD_PATTERNS
from attncli.core.summaries import jensen_shannon
from attncli.errors import UserError
from attncli.features.diff.results import (
    Alignment,
    ChangedStatistic,
    HeadDifference,
    HeadInterval,
    MovedHead,
    MovedRow,
)
from attncli.records.arguments import by, checked, rows_with
from attncli.records.columns import Cells, Records
from attncli.records.surveys import SurveyedHead
from attncli.records.values import Mask, NumberArray, Table

ARROW = " → "


def align(a: Sequence[str], b: Sequence[str]) -> Alignment:
    """Align tokens: match the longest common runs first; between them, runs of equal length correspond."""
    tokens: list[str] = []
    places: list[tuple[int, int]] = []
    for kind, i, last_i, j, last_j in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "replace" and last_i - i == last_j - j:
            tokens += [f"{x}{ARROW}{y}" for x, y in zip(a[i:last_i], b[j:last_j], strict=True)]
            places += zip(range(i, last_i), range(j, last_j), strict=True)
        elif kind == "equal":
            tokens += a[i:last_i]
            places += zip(range(i, last_i), range(j, last_j), strict=True)
        else:
            tokens += [*a[i:last_i], *b[j:last_j]]
            places += [*((n, -1) for n in range(i, last_i)), *((-1, n) for n in range(j, last_j))]
    where = np.array(places, dtype=np.int64).reshape(-1, 2)
    return Alignment(tuple(tokens), where[:, 0], where[:, 1])


def align_positions(axis: str, a: int, b: int) -> Alignment:
    """Align positions without tokens one to one. Raises UserError if their numbers differ."""
    if a != b:
        raise UserError(
            f"diff: A has {a} entries along {axis} and B has {b}, but there are no tokens to align them"
        )
    return Alignment((), np.arange(a), np.arange(b))


MAX_CHANGED_ROWS = 10
ROUNDING = 1e-6
"""A smaller distance between rows is a rounding error, not a change."""
COMMON_AXES = ("layer", "head")
"""The axes whose lengths may differ; only the shared positions are compared."""


@dataclass(frozen=True)
class NamedWeights:
    """The weights of every query on every key (the last two axes), with the tokens of both axes if known.

    `mask` marks the keys that each query sees.
    """

    axes: tuple[str, ...]
    values: NumberArray
    queries: Sequence[str] = ()
    keys: Sequence[str] = ()
    mask: Mask | None = None


@dataclass(frozen=True)
class WeightDifferences:
    """The weights of both sides at the aligned positions, and the distances between their rows.

    A query that one side lacks has no row there (NaN); a key that one side lacks has weight 0. `distances`
    are Jensen-Shannon distances per row, NaN if a row is not a distribution; see `jensen_shannon`.
    `changed_rows` has the rows that moved furthest. `by_head` has the heads, sorted by how far they moved,
    furthest first; it is empty if the weights have no axes but query and key. `masks` has both sides' masks
    at the aligned positions.
    """

    axes: tuple[str, ...]
    a: npt.NDArray[np.float64]
    b: npt.NDArray[np.float64]
    query: Alignment
    key: Alignment
    distances: npt.NDArray[np.float64]
    changed_rows: Records[MovedRow]
    by_head: Records[MovedHead]
    masks: tuple[Mask | None, Mask | None]

    @property
    def shared_mask(self) -> Mask | None:
        """The mask that both sides have in common, or None if their masks differ."""
        return self.masks[0] if self.masks[0] == self.masks[1] else None


def weight_differences(a: NamedWeights, b: NamedWeights) -> WeightDifferences:
    """Compare B with A. Raises UserError if axes differ, or sizes other than layers, heads and tokens."""
    sizes = tuple(zip(a.axes, a.values.shape, b.values.shape, strict=False))[:-2]
    if a.axes != b.axes or any(i != j for axis, i, j in sizes if axis not in COMMON_AXES):
        sides = [f"{' × '.join(t.axes)} ({' × '.join(map(str, t.values.shape))})" for t in (a, b)]
        raise UserError(
            f"diff: the weights of A are {sides[0]}, and those of B are {sides[1]}: "
            "they may differ only in layers, heads and tokens"
        )
    shared = tuple(slice(min(i, j)) for _, i, j in sizes)
    values_a, values_b = a.values[shared], b.values[shared]
    query = _aligned("query", (a.queries, b.queries), (values_a.shape[-2], values_b.shape[-2]))
    key = _aligned("key", (a.keys, b.keys), (values_a.shape[-1], values_b.shape[-1]))
    weights_a = _spread(values_a.astype(np.float64), query.a, key.a)
    weights_b = _spread(values_b.astype(np.float64), query.b, key.b)
    distances = jensen_shannon(torch.from_numpy(weights_a), torch.from_numpy(weights_b)).numpy()
    return WeightDifferences(
        a.axes,
        weights_a,
        weights_b,
        query,
        key,
        distances,
        _changed_rows(a.axes[:-1], distances, weights_b - weights_a),
        _by_head(a.axes[:-2], distances),
        (_mask_at(a, shared, query.a, key.a), _mask_at(b, shared, query.b, key.b)),
    )


def _aligned(axis: str, tokens: tuple[Sequence[str], Sequence[str]], sizes: tuple[int, int]) -> Alignment:
    """The alignment of both sides' queries or keys."""
    if all(len(names) == size for names, size in zip(tokens, sizes, strict=True)) and all(sizes):
        return align(*tokens)
    return align_positions(axis, *sizes)


def _spread(
    values: npt.NDArray[np.float64], queries: npt.NDArray[np.int64], keys: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """One side's weights at the aligned positions: NaN for a query and 0 for a key that this side lacks."""
    columns = np.where(keys >= 0, values[..., keys], 0)
    return np.where(queries[:, np.newaxis] >= 0, columns[..., queries, :], np.nan)


def _mask_at(
    side: NamedWeights,
    shared: "tuple[slice[None, int, None], ...]",
    queries: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
) -> Mask | None:
    """One side's mask at the aligned positions; it stays causal if query and key positions are equal."""
    num_queries, num_keys = side.values.shape[-2:]
    hidden = None if side.mask is None else side.mask.hidden(num_queries, num_keys)
    is_causal = num_queries == num_keys and np.array_equal(queries, keys) and side.mask == Mask(causal=True)
    if hidden is None or is_causal:
        return side.mask
    visible = np.broadcast_to(~hidden, side.values.shape)[shared]
    return Mask.of(np.nan_to_num(_spread(visible.astype(np.float64), queries, keys)))


def _changed_rows(
    axes: tuple[str, ...], distances: npt.NDArray[np.float64], difference: npt.NDArray[np.float64]
) -> Records[MovedRow]:
    flat = np.where(np.isnan(distances), -1, distances).ravel()
    furthest = np.argsort(-flat, kind="stable")[:MAX_CHANGED_ROWS]
    furthest = furthest[flat[furthest] >= ROUNDING]
    if not len(furthest):
        return MovedRow.rows([])
    index = np.unravel_index(furthest, distances.shape)
    moved, row = difference[index], np.arange(len(furthest))
    gained, lost = np.nanargmax(moved, axis=1), np.nanargmin(moved, axis=1)
    return MovedRow.table(
        **dict(zip(axes, index, strict=True)),
        jensen_shannon=distances[index],
        gained_key=gained,
        gained=moved[row, gained],
        lost_key=lost,
        lost=moved[row, lost],
    )


def _by_head(axes: tuple[str, ...], distances: npt.NDArray[np.float64]) -> Records[MovedHead]:
    """The heads that have a row on both sides; empty if there is no axis of heads."""
    if not axes or np.isnan(distances).all():
        return MovedHead.rows([])
    index = np.nonzero(~np.isnan(distances).all(axis=-1))
    finite_rows = [row[~np.isnan(row)] for row in distances[index]]
    places = dict(zip(axes, index, strict=True))
    mean, largest = np.array([[row.mean(), row.max()] for row in finite_rows]).T
    heads = MovedHead.table(**places, mean_jensen_shannon=mean, max_jensen_shannon=largest)
    return heads.taken(np.argsort(-mean, kind="stable").tolist())


WHERE = ("stack", "layer", "head")
HEAD_COLUMNS = ("layer", "head", "stack", "kind")
ENDS = ("lower", "upper")
NAMING = frozenset(pattern.statistic for pattern in HEAD_PATTERNS.values())
"""The statistics that define head patterns."""

HeadTable = Annotated[Table, by(rows_with(*WHERE, convert=Table))]
IntervalTable = Annotated[Table, by(rows_with(*WHERE, "statistic", "mean", *ENDS, convert=Table))]


@dataclass(frozen=True)
class ChangedHeads:
    """The head statistics whose 95 % intervals do not overlap, largest change first.

    Of the `num_shared` heads that both surveys have, `num_changed` have such a statistic.
    """

    rows: Records[ChangedStatistic]
    num_changed: int
    num_shared: int


@checked
def changed_heads(
    intervals_a: IntervalTable, intervals_b: IntervalTable, heads_a: HeadTable, heads_b: HeadTable
) -> ChangedHeads:
    """Compare two surveys over texts by the statistics that define patterns, and by the shares of pairs."""
    every_a, every_b = _read(intervals_a), _read(intervals_b)
    places_b = {(row.place, row.statistic): place for place, row in enumerate(every_b)}
    pairs = [
        (place, places_b[row.place, row.statistic])
        for place, row in enumerate(every_a)
        if (row.place, row.statistic) in places_b
    ]
    a, b = every_a.taken([place for place, _ in pairs]), every_b.taken([place for _, place in pairs])
    names_heads = np.array(
        [row.statistic in NAMING or (row.relation, row.measure) != (None, None) for row in a], dtype=bool
    )
    changed = np.flatnonzero(names_heads & _apart(a, b))
    differences = b.column("mean") - a.column("mean")
    changed = changed[np.argsort(-np.abs(differences[changed]), kind="stable")]
    num_shared = len({row.place for row in a})
    a, b = a.taken(changed.tolist()), b.taken(changed.tolist())
    places = [row.place for row in a]
    names_a, names_b = _patterns(heads_a), _patterns(heads_b)
    patterns = {
        "pattern_a": [names_a.get(place) for place in places],
        "pattern_b": [names_b.get(place) for place in places],
    }
    rows = ChangedStatistic.table(
        stack=a.column("stack").tolist(),
        layer=[row.layer for row in a],
        head=[row.head for row in a],
        statistic=a.column("statistic").tolist(),
        a=a.column("mean"),
        b=b.column("mean"),
        difference=differences[changed],
        lower_a=a.column("lower"),
        upper_a=a.column("upper"),
        lower_b=b.column("lower"),
        upper_b=b.column("upper"),
        **(patterns if names_a else {}),
    )
    return ChangedHeads(rows, len({*places}), num_shared)


def _read(intervals: Table) -> Records[HeadInterval]:
    """The intervals with typed columns. Raises UserError for invalid cells."""
    try:
        return HeadInterval.rows({name: row.get(name) for name in HeadInterval.columns} for row in intervals)
    except TypeError as error:  # a saved report was edited
        raise UserError(f"intervals: invalid in this survey: {error}") from None


def _patterns(heads: Table) -> dict[tuple[object, ...], object]:
    """The pattern of each head, keyed by the head's place."""
    return {tuple(map(row.get, WHERE)): row["pattern"] for row in heads if "pattern" in row}


def _apart(a: Records[HeadInterval], b: Records[HeadInterval]) -> npt.NDArray[np.bool_]:
    """True where one interval ends before the other begins; False where an end is missing."""
    lower_a, upper_a, lower_b, upper_b = (side.column(end) for side in (a, b) for end in ENDS)
    have_ends = ~np.isnan([lower_a, upper_a, lower_b, upper_b]).any(axis=0)
    apart: npt.NDArray[np.bool_] = have_ends & ((upper_a < lower_b) | (upper_b < lower_a))
    return apart


@checked
def head_differences(heads_a: HeadTable, heads_b: HeadTable) -> Records[HeadDifference]:
    """B - A for every statistic of the heads that both surveys have; NaN if one side has no number."""
    rows_b = {tuple(map(row.get, HEAD_COLUMNS)): row for row in heads_b}
    pairs = [
        (row, row_b)
        for row in heads_a
        if (row_b := rows_b.get(tuple(map(row.get, HEAD_COLUMNS)))) is not None
    ]
    if not pairs:
        return HeadDifference.rows([])
    first, _ = pairs[0]
    cells: dict[str, Cells] = {
        name: [row.get(name) for row, _ in pairs] for name in HEAD_COLUMNS if name in first
    }
    for name in dict.fromkeys(name for row, row_b in pairs for name in row if name in row_b):
        numbers = [(row.get(name), row_b.get(name)) for row, row_b in pairs]
        if _is_statistic(name) and all(isinstance(cell, float | None) for both in numbers for cell in both):
            cells[name] = np.array(
                [b - a if isinstance(a, float) and isinstance(b, float) else np.nan for a, b in numbers]
            )
    return HeadDifference.table(**cells)


def _is_statistic(name: str) -> bool:
    """True for a column of numbers, even if no head has a number."""
    declared = SurveyedHead.declared(name)
    return name not in HEAD_COLUMNS and (declared is None or declared.is_number)
