"""Two reports side by side: the weights of A, of B and their difference, and how far each row moved."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from attncli import __version__
from attncli.errors import UserError
from attncli.experiments.alignment import Alignment, align, align_positions
from attncli.report import NamedTensor, Report
from attncli.statistics.divergence import jensen_shannon

MAX_CHANGED_ROWS = 10
ROUNDING = 1e-6
"""A distance below it is how differently two equal rows were rounded, and no change."""
NO_DISTRIBUTION_NOTE = "Rows of weights that are no distribution have no Jensen-Shannon distance."
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
    tokens = [(side.context_tokens or side.tokens) if axis == "key" else side.tokens for side in (a, b)]
    if all(len(names) == size for names, size in zip(tokens, sizes, strict=True)) and all(sizes):
        return align(*tokens)
    return align_positions(axis, *sizes)


def _spread(values: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """A side's weights in the places of both: no number for a query that it lacks, 0 for a key."""
    columns = np.where(keys >= 0, values[..., keys], 0)
    return np.where(queries[:, np.newaxis] >= 0, columns[..., queries, :], np.nan)


def _compared_weights(
    a: tuple[Report, NamedTensor], b: tuple[Report, NamedTensor]
) -> tuple[dict[str, NamedTensor], Alignment, Alignment]:
    (report_a, tensor_a), (report_b, tensor_b) = a, b
    sides = [f"{' × '.join(t.axes)} ({' × '.join(map(str, t.values.shape))})" for t in (tensor_a, tensor_b)]
    if tensor_a.axes != tensor_b.axes or tensor_a.values.shape[:-2] != tensor_b.values.shape[:-2]:
        raise UserError(
            f"diff: the weights of A are {sides[0]}, of B {sides[1]}: all but the tokens must agree"
        )
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


def _changed_rows(distance: NamedTensor, difference: np.ndarray) -> list[dict[str, Any]]:
    """The rows that moved furthest, each with the key that gained most and the key that lost most."""
    flat = np.where(np.isnan(distance.values), -1, distance.values).ravel()
    rows = []
    for place in np.argsort(-flat, kind="stable")[:MAX_CHANGED_ROWS]:
        if flat[place] < ROUNDING:
            break
        index = np.unravel_index(place, distance.values.shape)
        moved = difference[index]
        most = {"gained": int(np.nanargmax(moved)), "lost": int(np.nanargmin(moved))}
        row: dict[str, Any] = {axis: int(i) for axis, i in zip(distance.axes, index, strict=True)}
        row["jensen_shannon"] = float(distance.values[index])
        for name, key in most.items():
            row[f"{name}_key"] = key
            row[name] = float(moved[key])
        rows.append(row)
    return rows


def _by_head(distance: NamedTensor) -> list[dict[str, Any]]:
    """The mean and the largest distance of each head, the head that moved most first."""
    axes = distance.axes[:-1]
    rows = []
    for index in np.ndindex(distance.values.shape[:-1]):
        own = distance.values[index][~np.isnan(distance.values[index])]
        if len(own):
            place = {axis: int(i) for axis, i in zip(axes, index, strict=True)}
            rows.append(
                {**place, "mean_jensen_shannon": float(own.mean()), "max_jensen_shannon": float(own.max())}
            )
    return sorted(rows, key=lambda row: -row["mean_jensen_shannon"])


def _figures(statistics: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Every number by its name, as `scores.variance`; of the rows' statistics the mean over rows."""
    for name, value in statistics.items():
        if name == "keys" or name.startswith("top_"):
            continue
        if isinstance(value, Mapping):
            yield from _figures(value, "" if name == "rows" else f"{before}{name}.")
        elif isinstance(value, NamedTensor):
            numbers = value.values[np.isfinite(value.values)]
            if len(numbers):
                yield f"{before}{name}.mean", float(numbers.mean())
        elif isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
            yield f"{before}{name}", float(value)


def _side_by_side(a: Report, b: Report) -> list[dict[str, Any]]:
    of_a, of_b = dict(_figures(a.statistics)), dict(_figures(b.statistics))
    return [
        {"statistic": name, "a": of_a[name], "b": of_b[name], "difference": of_b[name] - of_a[name]}
        for name in of_a
        if name in of_b
    ]


def _heads_difference(a: Report, b: Report) -> list[dict[str, Any]]:
    """B - A of every statistic of the heads that both surveys have."""
    of_b = {(row["layer"], row["head"], row["kind"]): row for row in b.statistics.get("heads", ())}
    rows = []
    for row in a.statistics.get("heads", ()):
        other = of_b.get((row["layer"], row["head"], row["kind"]))
        if other is None:
            continue
        place = {name: row[name] for name in ("layer", "head", "kind")}
        numbers = {
            name: other[name] - value
            for name, value in row.items()
            if isinstance(value, float) and isinstance(other.get(name), float)
        }
        rows.append(place | numbers)
    return rows


def _changed_settings(a: Report, b: Report) -> str:
    """What was asked for otherwise, in a line."""
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
    """B against A. UserError where their weights cannot be set against each other.

    Jensen-Shannon distances are per row; see `jensen_shannon`. Without weights on both sides (norm,
    scale-demo, a survey without maps) the statistics alone are compared.
    """
    tensor_a, tensor_b = _weights(a, "A"), _weights(b, "B")
    if (tensor_a is None) != (tensor_b is None):
        without = "A" if tensor_a is None else "B"
        raise UserError(f"diff: {without} has no weights to compare with those of the other side")
    tensors: dict[str, NamedTensor] = {}
    statistics: dict[str, Any] = {}
    notes = [_changed_settings(a, b)]
    tokens: tuple[str, ...] = ()
    context_tokens: tuple[str, ...] = ()
    if tensor_a is not None and tensor_b is not None:
        tensors, query, key = _compared_weights((a, tensor_a), (b, tensor_b))
        distances = jensen_shannon(
            torch.from_numpy(tensors["weights_a"].values), torch.from_numpy(tensors["weights_b"].values)
        )
        distance = NamedTensor(tensor_a.axes[:-1], distances.numpy())
        statistics["rows"] = {"jensen_shannon": distance}
        statistics["changed_rows"] = _changed_rows(distance, tensors["difference"].values)
        if distance.values.ndim > 1:
            statistics["by_head"] = _by_head(distance)
        tokens = query.tokens
        is_cross = bool(a.context_tokens or b.context_tokens)
        context_tokens = key.tokens if is_cross else ()
        if len(query.tokens) > query.num_shared or len(key.tokens) > key.num_shared:
            notes.append(GAP_NOTE)
        if not query.num_shared:
            notes.append(NO_SHARED_NOTE)
        elif np.isnan(distance.values).all():
            notes.append(NO_DISTRIBUTION_NOTE)
    elif a.experiment != b.experiment:
        raise UserError(f"diff: {a.experiment} and {b.experiment} have no weights and other statistics")
    if heads := _heads_difference(a, b):
        statistics["heads_difference"] = heads
    if figures := _side_by_side(a, b):
        statistics["side_by_side"] = figures
    if not (tensors or statistics):
        raise UserError(f"diff: {notes[0]} They share no weights and no single figure to set side by side")
    return Report(
        "diff",
        {"a": dict(a.spec), "b": dict(b.spec)},
        {"attncli": __version__, "torch": torch.__version__},
        tokens,
        context_tokens,
        tensors=tensors,
        statistics={name: value for name, value in statistics.items() if value},
        notes=tuple(notes),
    )
