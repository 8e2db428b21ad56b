"""Whether the tensors of a report fit one another; ValueError with the place in front where they do not."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.report import NamedTensor, Report, Statistic, Tensors
from attncli.saved.boxes import as_array

RANKED = ("top_keys", "top_weights")
# The axis that each group of tensors runs along, and the one of the weights that it has not.
GROUPS = {"rows": ("query", "key"), "keys": ("key", "query")}


def with_axes(
    statistics: Mapping[str, Any], axes: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> dict[str, Statistic]:
    """The statistics, of which those that are lists by name become tensors with the axes of these names."""
    groups = {name for name, value in statistics.items() if type(value) is dict}
    if wrong := sorted(groups ^ axes.keys() | groups - GROUPS.keys()):
        raise ValueError(
            f"statistic_axes: {wrong[0]} is missing, or is no group of tensors among the statistics"
        )
    return {
        name: _tensors(name, value, axes[name]) if name in groups else value
        for name, value in statistics.items()
    }


def _tensors(group: str, values: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Tensors:
    """A number for each query or key of each batch and head; of a query's first keys, one for each rank."""
    if wrong := sorted(values.keys() ^ axes.keys()):
        raise ValueError(f"statistic_axes.{group}: {wrong[0]} is missing, or unknown")
    found = Tensors()
    for name, numbers in values.items():
        last = (GROUPS[group][0], "rank") if name in RANKED else GROUPS[group][:1]
        if axes[name][-len(last) :] != last:
            got = ", ".join(axes[name])
            raise ValueError(f"statistic_axes.{group}.{name}: must end in {', '.join(last)} (got {got})")
        try:
            found[name] = NamedTensor(axes[name], as_array(numbers, len(axes[name])))
        except ValueError as error:
            raise ValueError(f"statistics.{group}.{name}: {error}") from None
    return found


def check_sizes(report: Report) -> None:
    """Along each axis as many as there are tokens, weights, or other statistics of the group."""
    groups = {group: report.tensors_of(group) for group in GROUPS}
    tensors = {f"tensors.{name}": tensor for name, tensor in report.tensors.items()}
    for group, members in groups.items():
        tensors |= {f"statistics.{group}.{name}": tensor for name, tensor in members.items()}
    num_keys = len(report.context_tokens or report.tokens)
    num_queries = len(report.tokens[report.first_query :])
    tokens = {"query": num_queries, "token": len(report.tokens), "key": num_keys}
    for place, tensor in tensors.items():
        for axis, size in zip(tensor.axes, tensor.values.shape, strict=True):
            if tokens.get(axis, 0) not in (0, size):
                raise ValueError(f"{place}: has {size} along {axis}, and there are {tokens[axis]} tokens")
    weights = report.tensors.get("weights")
    if weights is not None and weights.axes[-2:] != ("query", "key"):
        raise ValueError(f"tensors.weights: axes must end in query, key (got {', '.join(weights.axes)})")
    for group, members in groups.items():
        known = {"weights": weights} if weights is not None else {}
        sizes = [_sizes(tensor, GROUPS[group][1]) for tensor in (*known.values(), *members.values())]
        for name, own in zip((*known, *members), sizes, strict=True):
            if own != sizes[0]:
                wanted = ", ".join(f"{axis} {size}" for axis, size in sizes[0])
                raise ValueError(
                    f"statistics.{group}.{name}: must have the axes {wanted}, as what it belongs to"
                )
    if any(name in groups["rows"] for name in RANKED):
        _check_ranks(groups["rows"], num_keys if weights is None else weights.values.shape[-1])


def _sizes(tensor: NamedTensor, without: str) -> list[tuple[str, int]]:
    sizes = zip(tensor.axes, tensor.values.shape, strict=True)
    return [(axis, size) for axis, size in sizes if axis not in (without, "rank")]


def _check_ranks(rows: Tensors, num_keys: int) -> None:
    for name in RANKED:
        if name not in rows:
            raise ValueError(f"statistics.rows: {name} is missing: {' and '.join(RANKED)} come together")
    keys, weights = (rows[name].values for name in RANKED)
    if keys.shape != weights.shape:
        raise ValueError("statistics.rows.top_weights: must have the size of top_keys")
    if not np.issubdtype(keys.dtype, np.integer):
        raise ValueError("statistics.rows.top_keys: must hold whole numbers: indices of keys")
    if num_keys and keys.max() >= num_keys:
        raise ValueError(f"statistics.rows.top_keys: names a key beyond the {num_keys} keys")
