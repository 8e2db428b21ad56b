"""Two reports side by side: the weights of A, of B and their difference, and how far each row moved."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from attncli.errors import UserError
from attncli.experiments.attention_report import versions
from attncli.experiments.diff.alignment import Alignment, align, align_positions
from attncli.experiments.diff.heads import (
    change_note,
    changed_heads,
    heads_difference,
    left_out_notes,
    places_of,
)
from attncli.report import PLACES, NamedTensor, Numbers, Report, Statistic, Table, Tensors
from attncli.statistics.divergence import jensen_shannon

MAX_CHANGED_ROWS = 10
ROUNDING = 1e-6
"""A distance below this is rounding between equal rows, not a change."""
NO_DISTRIBUTION_NOTE = "Rows of weights that are not distributions have no Jensen-Shannon distance."
NO_SHARED_NOTE = "A and B share no token: no row of one stands beside a row of the other."
GAP_NOTE = "A token that one side lacks has no row there, and weight 0 as a key."


def _weights(report: Report, side: str) -> NamedTensor | None:
    """The weights of every query on every key; None where an experiment has none."""
    tensor = report.tensors.get("weights")
    if tensor is not None and tensor.axes[-2:] == ("query", "key"):
        return tensor
    if "pooled_mean" in report.tensors:
        raise UserError(f"diff: {side} holds maps of blocks, not weights: use fewer tokens, or engine dense")
    return None


def _aligned(axis: str, a: Report, b: Report, sizes: tuple[int, int]) -> Alignment:
    """The queries, or the keys, of both sides."""
    tokens = [
        (side.context_tokens or side.tokens) if axis == "key" else side.tokens[side.first_query :]
        for side in (a, b)
    ]
    if all(len(names) == size for names, size in zip(tokens, sizes, strict=True)) and all(sizes):
        return align(*tokens)
    return align_positions(axis, *sizes)


def _spread(values: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """One side's weights at the places of both: NaN for a query that it lacks, 0 for such a key."""
    columns = np.where(keys >= 0, values[..., keys], 0)
    return np.where(queries[:, np.newaxis] >= 0, columns[..., queries, :], np.nan)


def _compared_weights(
    a: tuple[Report, NamedTensor], b: tuple[Report, NamedTensor]
) -> tuple[dict[str, NamedTensor], Alignment, Alignment]:
    (report_a, tensor_a), (report_b, tensor_b) = a, b
    sizes = tuple(zip(tensor_a.axes, tensor_a.values.shape, tensor_b.values.shape, strict=False))[:-2]
    if tensor_a.axes != tensor_b.axes or any(i != j for axis, i, j in sizes if axis not in PLACES):
        sides = [
            f"{' × '.join(t.axes)} ({' × '.join(map(str, t.values.shape))})" for t in (tensor_a, tensor_b)
        ]
        raise UserError(
            f"diff: the weights of A are {sides[0]}, of B {sides[1]}: "
            "all but layers, heads and tokens must agree"
        )
    shared = tuple(slice(min(i, j)) for _, i, j in sizes)
    tensor_a, tensor_b = (replace(tensor, values=tensor.values[shared]) for tensor in (tensor_a, tensor_b))
    shapes = tensor_a.values.shape, tensor_b.values.shape
    query = _aligned("query", report_a, report_b, (shapes[0][-2], shapes[1][-2]))
    key = _aligned("key", report_a, report_b, (shapes[0][-1], shapes[1][-1]))
    weights_a = _spread(tensor_a.values.astype(np.float64), query.a, key.a)
    weights_b = _spread(tensor_b.values.astype(np.float64), query.b, key.b)
    tensors = {
        "difference": NamedTensor(tensor_a.axes, weights_b - weights_a),
        "weights_a": NamedTensor(tensor_a.axes, weights_a),
        "weights_b": NamedTensor(tensor_a.axes, weights_b),
    }
    return tensors, query, key


def _changed_rows(distance: NamedTensor, difference: np.ndarray) -> Table:
    """The rows that moved furthest, each with the key that gained most and the key that lost most."""
    flat = np.where(np.isnan(distance.values), -1, distance.values).ravel()
    rows = Table()
    for place in np.argsort(-flat, kind="stable")[:MAX_CHANGED_ROWS]:
        if flat[place] < ROUNDING:
            break
        index = np.unravel_index(place, distance.values.shape)
        moved = difference[index]
        gained, lost = int(np.nanargmax(moved)), int(np.nanargmin(moved))
        rows.append(
            {
                **dict(zip(distance.axes, map(int, index), strict=True)),
                "jensen_shannon": float(distance.values[index]),
                "gained_key": gained,
                "gained": float(moved[gained]),
                "lost_key": lost,
                "lost": float(moved[lost]),
            }
        )
    return rows


def _by_head(distance: NamedTensor) -> Table:
    """The mean and the largest distance of each head, the head that moved most first."""
    rows: list[dict[str, Any]] = []
    for index in np.ndindex(distance.values.shape[:-1]):
        own = distance.values[index][~np.isnan(distance.values[index])]
        if len(own):
            place = dict(zip(distance.axes[:-1], index, strict=True))
            numbers = {"mean_jensen_shannon": float(own.mean()), "max_jensen_shannon": float(own.max())}
            rows.append({**place, **numbers})
    rows.sort(key=lambda row: -row["mean_jensen_shannon"])
    return Table(rows)


def _single_numbers(report: Report) -> Iterator[tuple[str, float]]:
    """Every number by its name, as `scores.variance`; of the statistics of rows the mean over rows."""
    for group, found in report.statistics.items():
        if isinstance(found, Numbers):
            for name, value in found.items():
                if value is not None and np.isfinite(value):
                    yield f"{group}.{name}", float(value)
    for name, tensor in report.tensors_of("rows").items():
        numbers = tensor.values[np.isfinite(tensor.values)]
        if len(numbers) and not name.startswith("top_"):
            yield f"{name}.mean", float(numbers.mean())


def _side_by_side(a: Report, b: Report) -> Table:
    of_a, of_b = dict(_single_numbers(a)), dict(_single_numbers(b))
    return Table(
        {"statistic": name, "a": of_a[name], "b": of_b[name], "difference": of_b[name] - of_a[name]}
        for name in of_a
        if name in of_b
    )


def _changed_settings(a: Report, b: Report) -> str:
    """The settings that differ, in one line."""
    if a.experiment != b.experiment:
        return f"A is {a.experiment}, B is {b.experiment}."
    keys = [*a.spec, *(key for key in b.spec if key not in a.spec)]
    changed = [
        f"{key} {_setting(a.spec.get(key))} -> {_setting(b.spec.get(key))}"
        for key in keys
        if a.spec.get(key) != b.spec.get(key)
    ]
    return f"From A to B: {'; '.join(changed)}." if changed else "A and B have the same settings."


def _setting(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(_setting, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def compare(a: Report, b: Report) -> Report:
    """B compared with A. UserError where their weights cannot be compared.

    Jensen-Shannon distances are per row; see `jensen_shannon`. Without weights on both sides (norm,
    scale-demo, a survey without maps) only the statistics are compared.
    """
    tensor_a, tensor_b = _weights(a, "A"), _weights(b, "B")
    if (tensor_a is None) != (tensor_b is None):
        without = "A" if tensor_a is None else "B"
        raise UserError(f"diff: {without} has no weights to compare with those of the other side")
    tensors: dict[str, NamedTensor] = {}
    statistics: dict[str, Statistic] = {}
    notes = [_changed_settings(a, b), *left_out_notes(places_of(a, tensor_a), places_of(b, tensor_b))]
    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    if tensor_a is not None and tensor_b is not None:
        tensors, query, key = _compared_weights((a, tensor_a), (b, tensor_b))
        distances = jensen_shannon(
            torch.from_numpy(tensors["weights_a"].values), torch.from_numpy(tensors["weights_b"].values)
        )
        distance = NamedTensor(tensor_a.axes[:-1], distances.numpy())
        statistics["rows"] = Tensors(jensen_shannon=distance)
        statistics["changed_rows"] = _changed_rows(distance, tensors["difference"].values)
        if distance.values.ndim > 1:
            statistics["by_head"] = _by_head(distance)
        tokens = query.tokens
        is_cross = any(side.context_tokens or side.first_query for side in (a, b))
        context_tokens = key.tokens if is_cross else ()
        if len(query.tokens) > query.num_shared or len(key.tokens) > key.num_shared:
            notes.append(GAP_NOTE)
        if not query.num_shared:
            notes.append(NO_SHARED_NOTE)
        elif np.isnan(distance.values).all():
            notes.append(NO_DISTRIBUTION_NOTE)
    elif a.experiment != b.experiment:
        raise UserError(f"diff: {a.experiment} and {b.experiment} have no weights and other statistics")
    if a.table("intervals") and b.table("intervals"):
        statistics["changed_heads"] = changed = changed_heads(a, b)
        notes.insert(1, change_note(a, b, changed))
    statistics["heads_difference"] = heads_difference(a, b)
    statistics["side_by_side"] = _side_by_side(a, b)
    statistics = {name: value for name, value in statistics.items() if value}
    if not (tensors or statistics):
        raise UserError(f"diff: {notes[0]} They share no weights and no single statistic to set side by side")
    return Report(
        "diff",
        {"a": dict(a.spec), "b": dict(b.spec)},
        versions(),
        tokens,
        context_tokens,
        tensors=tensors,
        statistics=statistics,
        notes=tuple(notes),
        token_spelling=a.token_spelling,
    )
