"""The statistics of a saved report: tensors of rows and keys, mappings of numbers, and tables of rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attncli.report import NamedTensor, Numbers, Statistic, Table, Tensors
from attncli.saved.parts import Part
from attncli.saved.tensors import read_axes

RANKED = ("top_keys", "top_weights")
# The axis that each group of tensors runs along.
GROUPS = {"rows": "query", "keys": "key"}


def read_statistics(part: Part, axes_part: Part, tensors: Mapping[str, NamedTensor]) -> dict[str, Statistic]:
    """Every statistic in its order; the tensors among them with the axes that stand beside them."""
    axes = axes_part.mapping()
    groups = part.mapping()
    for name in axes:
        if name not in GROUPS or name not in groups:
            raise axes_part.wrong(f"{name} is no group of tensors among the statistics")
    found: dict[str, Statistic] = {}
    for name, item in groups.items():
        if name in GROUPS:
            if name not in axes:
                raise axes_part.wrong(f"{name} is missing")
            found[name] = _tensors(item, axes[name], GROUPS[name])
        else:
            found[name] = _table(item) if isinstance(item.value, list) else _numbers(item)
    _check_shapes(part, found, tensors)
    return found


def _tensors(part: Part, axes_part: Part, along: str) -> Tensors:
    """A number for each query or key of each batch and head; of a query's first keys, one for each rank."""
    found = Tensors()
    members = _filled(part).mapping()
    axes_of = axes_part.fields(tuple(members))
    for name, item in members.items():
        axes = read_axes(axes_of[name])
        last = (along, "rank") if name in RANKED else (along,)
        if axes[-len(last) :] != last:
            raise axes_of[name].wrong(f"must end in {', '.join(last)} (got {', '.join(axes)})")
        found[name] = NamedTensor(axes, item.array(len(axes)))
    return found


def _check_shapes(part: Part, statistics: Mapping[str, Any], tensors: Mapping[str, NamedTensor]) -> None:
    """Rows and keys have the axes of the weights, less one; all rows are of one size; top keys are keys."""
    weights = tensors.get("weights")
    if weights is not None and weights.axes[-2:] != ("query", "key"):
        wrong = Part(None, part.document, ("tensors", "weights"))
        raise wrong.wrong(f"axes must end in query, key (got {', '.join(weights.axes)})")
    for group, along in GROUPS.items():
        members: Mapping[str, NamedTensor] = statistics.get(group, {})
        places = {name: _place(tensor) for name, tensor in members.items()}
        wanted = None
        if weights is not None:
            other = "key" if along == "query" else "query"
            wanted = {axis: size for axis, size in _sizes(weights).items() if axis != other}
        for name, place in places.items():
            wanted = place if wanted is None else wanted
            if list(place.items()) != list(wanted.items()):
                text = ", ".join(f"{axis} {size}" for axis, size in wanted.items())
                raise _at(part, group, name).wrong(f"must have the axes {text}, as what it belongs to")
    if any(name in statistics.get("rows", {}) for name in RANKED):
        _check_ranks(part, statistics["rows"], weights)


def _check_ranks(part: Part, rows: Mapping[str, NamedTensor], weights: NamedTensor | None) -> None:
    for name in RANKED:
        if name not in rows:
            raise _at(part, "rows").wrong(f"{name} is missing: {' and '.join(RANKED)} come together")
    keys, key_weights = (rows[name].values for name in RANKED)
    if keys.shape != key_weights.shape:
        raise _at(part, "rows", "top_weights").wrong("must have the size of top_keys")
    if not np.issubdtype(keys.dtype, np.integer):
        raise _at(part, "rows", "top_keys").wrong("must hold whole numbers: indices of keys")
    if weights is not None and keys.max() >= weights.values.shape[-1]:
        raise _at(part, "rows", "top_keys").wrong(f"names a key beyond the {weights.values.shape[-1]} keys")


def _numbers(part: Part) -> Numbers:
    members = _filled(part).mapping()
    for item in members.values():
        if isinstance(item.value, str):
            raise item.wrong("must be a number (got a text)")
    return Numbers((name, item.scalar()) for name, item in members.items())


def _table(part: Part) -> Table:
    """Rows with the same names, whose cells are numbers, texts or lists of so many numbers."""
    rows = Table(
        {name: _cell(item) for name, item in _filled(row).mapping().items()} for row in _filled(part).items()
    )
    kinds: dict[str, Any] = {}
    for number, row in enumerate(rows):
        if list(row) != list(rows[0]):
            raise part.wrong(f"row {number} has other names than row 0")
        for name, cell in row.items():
            kind = len(cell) if isinstance(cell, list) else type(cell) if isinstance(cell, str) else None
            if kinds.setdefault(name, kind) != kind:
                raise part.wrong(f"row {number}: {name} is of another kind than in row 0")
    return rows


def _filled(part: Part) -> Part:
    if part.value in ({}, []):
        raise part.wrong("is empty")
    return part


def _cell(part: Part) -> Any:
    return [item.scalar() for item in part.items()] if isinstance(part.value, list) else part.scalar()


def _sizes(tensor: NamedTensor) -> dict[str, int]:
    return dict(zip(tensor.axes, tensor.values.shape, strict=True))


def _place(tensor: NamedTensor) -> dict[str, int]:
    return {axis: size for axis, size in _sizes(tensor).items() if axis != "rank"}


def _at(part: Part, *names: str) -> Part:
    return Part(None, part.document, (*part.path, *names))
