"""Two sets of weights, or two surveys of heads, compared: aligned by their tokens, and what changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any

import numpy as np
import torch

from attncli.arguments import by, checked, rows_with
from attncli.core.names import HEAD_PATTERNS
from attncli.core.summaries import jensen_shannon
from attncli.errors import UserError
from attncli.measure.patterns import HeadRow, with_equal_names
from attncli.records.changes import Alignment

ARROW = " → "


def align(a: Sequence[str], b: Sequence[str]) -> Alignment:
    """The longest common runs come first; between them, runs of equal length correspond to each other."""
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
    """Places without tokens: they correspond, if there are as many; UserError if not."""
    if a != b:
        raise UserError(f"diff: A has {a} entries along {axis} and B has {b}, and no tokens to align them by")
    return Alignment((), np.arange(a), np.arange(b))


MAX_CHANGED_ROWS = 10
ROUNDING = 1e-6
"""A distance below this is rounding between equal rows, not a change."""
COMMON_AXES = ("layer", "head")
"""Axes of which both sides may have different numbers: the first are compared."""


@dataclass(frozen=True)
class NamedWeights:
    """Weights of every query on every key, the last two axes, and the tokens of both where there are any."""

    axes: tuple[str, ...]
    values: np.ndarray
    queries: Sequence[str] = ()
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class WeightDifferences:
    """The weights of both sides at the places of both, and how far each row of B is from that of A.

    A query that one side lacks has no row there (NaN), such a key the weight 0. `distances` are
    Jensen-Shannon distances by row, NaN where a row is not a distribution; see `jensen_shannon`.
    `changed_rows` are the rows that moved furthest, each with the key that gained most and the key that lost
    most; `by_head` has the mean and the largest distance of each head, the head that moved most first.
    """

    axes: tuple[str, ...]
    a: np.ndarray
    b: np.ndarray
    query: Alignment
    key: Alignment
    distances: np.ndarray
    changed_rows: list[dict[str, Any]]
    by_head: list[dict[str, Any]]


def weight_differences(a: NamedWeights, b: NamedWeights) -> WeightDifferences:
    """B compared with A. UserError where their axes, or sizes other than layers, heads and tokens, differ."""
    sizes = tuple(zip(a.axes, a.values.shape, b.values.shape, strict=False))[:-2]
    if a.axes != b.axes or any(i != j for axis, i, j in sizes if axis not in COMMON_AXES):
        sides = [f"{' × '.join(t.axes)} ({' × '.join(map(str, t.values.shape))})" for t in (a, b)]
        raise UserError(
            f"diff: the weights of A are {sides[0]}, of B {sides[1]}: "
            "all but layers, heads and tokens must agree"
        )
    shared = tuple(slice(min(i, j)) for _, i, j in sizes)
    values_a, values_b = a.values[shared], b.values[shared]
    query = _aligned("query", (a.queries, b.queries), (values_a.shape[-2], values_b.shape[-2]))
    key = _aligned("key", (a.keys, b.keys), (values_a.shape[-1], values_b.shape[-1]))
    weights_a = _spread(values_a.astype(np.float64), query.a, key.a)
    weights_b = _spread(values_b.astype(np.float64), query.b, key.b)
    distances = jensen_shannon(torch.from_numpy(weights_a), torch.from_numpy(weights_b)).numpy()
    changed_rows = list(_changed_rows(a.axes[:-1], distances, weights_b - weights_a))
    by_head = _by_head(a.axes[:-2], distances) if distances.ndim > 1 else []
    return WeightDifferences(a.axes, weights_a, weights_b, query, key, distances, changed_rows, by_head)


def _aligned(axis: str, tokens: tuple[Sequence[str], Sequence[str]], sizes: tuple[int, int]) -> Alignment:
    """The queries, or the keys, of both sides."""
    if all(len(names) == size for names, size in zip(tokens, sizes, strict=True)) and all(sizes):
        return align(*tokens)
    return align_positions(axis, *sizes)


def _spread(values: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """One side's weights at the places of both: NaN for a query that it lacks, 0 for such a key."""
    columns = np.where(keys >= 0, values[..., keys], 0)
    return np.where(queries[:, np.newaxis] >= 0, columns[..., queries, :], np.nan)


def _changed_rows(
    axes: tuple[str, ...], distances: np.ndarray, difference: np.ndarray
) -> Iterator[dict[str, Any]]:
    flat = np.where(np.isnan(distances), -1, distances).ravel()
    for place in np.argsort(-flat, kind="stable")[:MAX_CHANGED_ROWS]:
        if flat[place] < ROUNDING:
            return
        index = np.unravel_index(place, distances.shape)
        moved = difference[index]
        gained, lost = int(np.nanargmax(moved)), int(np.nanargmin(moved))
        yield {
            **dict(zip(axes, map(int, index), strict=True)),
            "jensen_shannon": float(distances[index]),
            "gained_key": gained,
            "gained": float(moved[gained]),
            "lost_key": lost,
            "lost": float(moved[lost]),
        }


def _by_head(axes: tuple[str, ...], distances: np.ndarray) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for index in np.ndindex(distances.shape[:-1]):
        own = distances[index][~np.isnan(distances[index])]
        if len(own):
            place = dict(zip(axes, index, strict=True))
            numbers = {"mean_jensen_shannon": float(own.mean()), "max_jensen_shannon": float(own.max())}
            rows.append({**place, **numbers})
    rows.sort(key=lambda row: -row["mean_jensen_shannon"])
    return rows


WHERE = ("stack", "layer", "head")
ENDS = ("lower", "upper")
NAMING = frozenset(pattern.statistic for pattern in HEAD_PATTERNS.values())
"""The statistics that name heads."""

Row = Mapping[str, Any]
Heads = Annotated[Sequence[Row], by(rows_with(*WHERE))]
Intervals = Annotated[Sequence[Row], by(rows_with(*WHERE, "statistic", "mean", *ENDS))]


@dataclass(frozen=True)
class ChangedHeads:
    """The statistics of heads whose 95 % intervals do not overlap, the largest change first.

    `num_changed` heads have one, of `num_shared` heads that both surveys have.
    """

    rows: list[dict[str, Any]]
    num_changed: int
    num_shared: int


@checked
def changed_heads(
    intervals_a: Intervals, intervals_b: Intervals, heads_a: Heads, heads_b: Heads
) -> ChangedHeads:
    """Of two surveys over texts, by the statistics that name heads and the shares of relations."""
    of_b = {_key(row): row for row in intervals_b}
    names_a, names_b = _names(heads_a), _names(heads_b)
    rows: list[dict[str, Any]] = []
    for row in intervals_a:
        other = of_b.get(_key(row))
        is_shown = row["statistic"] in NAMING or "relation" in row
        if other is None or not is_shown or not _apart(row, other):
            continue
        mean_a, mean_b = float(row["mean"]), float(other["mean"])
        place = _place(row)
        rows.append(
            {
                **dict(zip(WHERE, place, strict=True)),
                "statistic": row["statistic"],
                "a": mean_a,
                "b": mean_b,
                "difference": mean_b - mean_a,
                **{f"{end}_a": row[end] for end in ENDS},
                **{f"{end}_b": other[end] for end in ENDS},
                **({"pattern_a": names_a.get(place), "pattern_b": names_b.get(place)} if names_a else {}),
            }
        )
    rows.sort(key=lambda row: -abs(row["difference"]))
    shared = {_place(row) for row in intervals_a if _key(row) in of_b}
    return ChangedHeads(rows, len({_place(row) for row in rows}), len(shared))


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in WHERE)


def _key(row: Row) -> tuple[tuple[Any, ...], Any]:
    return _place(row), row["statistic"]


def _names(heads: Sequence[Row]) -> dict[tuple[Any, ...], Any]:
    return {_place(row): row["pattern"] for row in heads if "pattern" in row}


def _apart(a: Row, b: Row) -> bool:
    """Whether one interval ends before the other begins; one without ends is apart from none."""
    ends = [row[name] for row in (a, b) for name in ENDS]
    if not all(isinstance(end, float) and end == end for end in ends):
        return False
    lower_a, upper_a, lower_b, upper_b = ends
    return bool(upper_a < lower_b or upper_b < lower_a)


@checked
def head_differences(heads_a: Heads, heads_b: Heads) -> list[HeadRow]:
    """B - A of every statistic of the heads that both surveys have; NaN where one has no number."""
    where = ("layer", "head", "stack", "kind")
    of_b = {tuple(map(row.get, where)): row for row in heads_b}
    found: list[HeadRow] = []
    for row in heads_a:
        other = of_b.get(tuple(map(row.get, where)), {})
        numbers = {
            name: of_other - value
            for name, value in row.items()
            if isinstance(value, float) and isinstance(of_other := other.get(name), float)
        }
        if other:
            found.append({name: row[name] for name in where if name in row} | numbers)
    return with_equal_names(found)
