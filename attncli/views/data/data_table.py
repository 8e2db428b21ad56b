"""A table of typed columns, from rows of cells or from tensors that share their axes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import Cell, NamedTensor, Report, Row, plain
from attncli.views.data.writers import TYPES, Block
from attncli.views.matrices import first_position, tokens_of

BLOCK = 2**16
# The type that holds the cells of both; text where there is no such type.
WIDER = {frozenset((kind,)): kind for kind in TYPES} | {frozenset(("integer", "number")): "number"}
SINGULAR = {"scores": "score", "weights": "weight", "keys": "key"}


class DataTable(NamedTuple):
    """The type of each column, and the rows, made block by block when they are written."""

    columns: Mapping[str, str]
    blocks: Callable[[], Iterator[Block]]


def _type_of(cells: Sequence[Any]) -> str | None:
    """The type that holds every cell; None where all are empty."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float} and kinds:
        return "integer" if kinds == {int} else "number"
    return "boolean" if kinds == {bool} else "text" if kinds else None


def table_of_rows(rows: Sequence[Row]) -> DataTable:
    """One column per name, of a list of numbers one per place in it; empty columns are left out."""
    cells = [_cells_by_column(row) for row in rows]
    names = dict.fromkeys(name for row in cells for name in row)
    columns = {name: [row.get(name) for row in cells] for name in names}
    types = {name: kind for name, column in columns.items() if (kind := _type_of(column)) is not None}
    return DataTable(types, lambda: iter([{name: columns[name] for name in types}] if types else []))


def _cells_by_column(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in row.items():
        items = (
            {f"{name}_{i}": item for i, item in enumerate(cell)} if isinstance(cell, list) else {name: cell}
        )
        for column, item in items.items():
            # An id stays exact, so that it matches the user's own.
            found[column] = plain_text(item) if isinstance(item, str) and name != "id" else plain(item)
    return found


def table_of_tensors(report: Report, tensors: Mapping[str, NamedTensor]) -> DataTable:
    """One row per place on the axes of the first, one column per tensor; the others may lack an axis.

    Tokens are beside their places. A tensor with one axis more has one column per place on that axis.
    """
    first = next(iter(tensors.values()))
    axes, shape = first.axes, first.values.shape
    tokens = {axis: [plain_text(token) for token in tokens_of(report, axis)] for axis in axes}
    columns: dict[str, str] = {}
    for axis in axes:
        columns |= {axis: "integer"} | ({f"{axis}_text": "text"} if tokens[axis] else {})
    values = {}
    for name, tensor in tensors.items():
        for column, array in _spread(name, tensor, axes).items():
            if array.dtype.kind != "f" or np.isfinite(array).any():
                values[column] = np.broadcast_to(array, shape)
                columns[column] = "number" if array.dtype.kind == "f" else "integer"

    def blocks() -> Iterator[Block]:
        for start in range(0, prod(shape), BLOCK):
            rows = slice(start, min(start + BLOCK, prod(shape)))
            places = np.unravel_index(np.arange(rows.start, rows.stop), shape)
            block = {name: plain(array.flat[rows]) for name, array in values.items()}
            for axis, place in zip(axes, places, strict=True):
                block[axis] = (place + first_position(report, axis)).tolist()
                if tokens[axis]:
                    block[f"{axis}_text"] = [tokens[axis][i] for i in place]
            yield block

    return DataTable(columns, blocks)


def stacked(parts: Sequence[tuple[Mapping[str, Cell], DataTable]]) -> DataTable:
    """The tables one below the other, with the union of their columns; its own cells lead each row."""
    names = dict.fromkeys(name for own, _ in parts for name in own)
    kinds = {name: _type_of([own.get(name) for own, _ in parts]) for name in names}
    columns = {name: kind for name, kind in kinds.items() if kind is not None}
    for _, table in parts:
        for name, kind in table.columns.items():
            columns[name] = WIDER.get(frozenset((kind, columns.get(name, kind))), "text")

    def blocks() -> Iterator[Block]:
        for own, table in parts:
            for block in table.blocks():
                count = len(next(iter(block.values()), ()))
                yield {name: block.get(name) or [own.get(name)] * count for name in columns}

    return DataTable(columns, blocks)


def _spread(name: str, tensor: NamedTensor, axes: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The columns of a tensor, each ready to be repeated along the axes that it lacks."""
    name = "_".join(SINGULAR.get(word, word) for word in name.split("_"))
    parts = {name: tensor.values}
    if tensor.axes[-1] not in axes:
        parts = {f"{name}_{i}": tensor.values[..., i] for i in range(tensor.values.shape[-1])}
    place = tuple(slice(None) if axis in tensor.axes else np.newaxis for axis in axes)
    return {column: array[place] for column, array in parts.items()}
