"""The curves of a report: numbers over points, and rows of a table that each hold a list of numbers."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import Report, Table


class Curve(NamedTuple):
    """Numbers over numbers, with a label where there are several curves."""

    label: str
    x: np.ndarray
    y: np.ndarray


class Curves(NamedTuple):
    """Curves that share their axes. `is_of_rows`: one curve per row of a table, over the places of a list."""

    title: str
    x_name: str
    curves: list[Curve]
    is_of_rows: bool


def curves_of(report: Report) -> Iterator[Curves]:
    """Each tensor over points against the first of them; then the lists of numbers in tables."""
    points = {name: t.values for name, t in report.tensors.items() if t.axes == ("point",)}
    x_name = next(iter(points), "")
    for name in list(points)[1:]:
        if points[name].shape == points[x_name].shape:
            curve = Curve("", points[x_name], points[name])
            yield Curves(f"{name} over {x_name}", x_name, [curve], is_of_rows=False)
    for name, table in report.statistics.items():
        if isinstance(table, Table) and table:
            yield from _of_rows(name, table)


def _of_rows(name: str, table: Table) -> Iterator[Curves]:
    first = next(iter(table[0]))
    for column in (column for column, cell in table[0].items() if isinstance(cell, list)):
        curves = []
        for row in table:
            y = np.array(row[column], dtype=np.float64)
            curves.append(Curve(f"{first} {_cell_text(row[first])}", np.arange(len(y)), y))
        if all(np.isfinite(curve.y).all() for curve in curves):
            yield Curves(f"{name}: {column} by {first}", "place", curves, is_of_rows=True)


def _cell_text(cell: object) -> str:
    return f"{cell:g}" if isinstance(cell, int | float) else plain_text(str(cell))
