"""The heads of a survey as a table: where each stands, what it does, and its statistics."""

from collections.abc import Sequence

from attncli.plain_text import plain_text
from attncli.report import PLACES, Row
from attncli.views.numbers import scalar
from attncli.views.tables.elements import Column, Grid
from attncli.views.tables.tensor_tables import two_lines

WHERE = ("layer", "head", "stack", "kind", "module", "pattern")


def heads_grid(
    title: str,
    rows: Sequence[Row],
    precision: int,
    *,
    first: str | None = None,
    halves: Sequence[str] | None = None,
) -> Grid:
    """Layer and head, and the rest of its place where that tells something; the statistic `first` leads.

    `halves` are the half widths of its intervals.
    """
    where = _where(rows)
    layer, *places = [
        Column(("", name), [plain_text(str(row[name])) for row in rows], left=name not in PLACES)
        for name in where
    ]
    names = [name for name in rows[0] if name not in WHERE]
    if first in names:
        names = [first, *(name for name in names if name != first)]
    numbers = [Column(two_lines(name), [_cell(row[name], precision) for row in rows]) for name in names]
    if halves is not None:
        numbers.insert(1, Column(("", ""), halves))
    return Grid(title, layer, [*places, *numbers], repeated=sum(name in ("head", "stack") for name in where))


def _cell(cell: object, precision: int) -> str:
    return plain_text(cell) if isinstance(cell, str) else scalar(cell, precision)


def _where(rows: Sequence[Row]) -> list[str]:
    """Of what says where a head stands all that two heads of one layer and head differ in."""
    places = {(row["layer"], row.get("stack")) for row in rows}
    modules = {row.get("module") for row in rows}
    of_modules = {(row["layer"], row.get("stack"), row.get("module")) for row in rows}
    tells = {
        "stack": len({row.get("stack") for row in rows}) > 1,
        "kind": False,
        "module": not len(places) == len(modules) == len(of_modules),
    }
    return [name for name in WHERE if name in rows[0] and tells.get(name, True)]
