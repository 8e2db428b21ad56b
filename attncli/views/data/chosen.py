"""The one table that a file holds: of each report the one that is asked for, its own cells before it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attncli.plain_text import plain_text
from attncli.report import Cell, Report
from attncli.views import Display
from attncli.views.data.data_table import DataTable, stacked
from attncli.views.data.report_tables import main_table, table_named


def chosen_table(reports: Iterable[Report], display: Display) -> DataTable:
    """The table of the only report; of several one below the other, after what tells the reports apart.

    All are read before the first is written, because a later one may have a column more.
    """
    abouts: list[dict[str, Cell]] = []
    tables = []
    for number, report in enumerate(reports):
        tables.append(table_named(report, *display.show) if display.show else main_table(report))
        own: dict[str, Cell] = {"report": number, "experiment": report.experiment, "id": report.id}
        abouts.append(own | {name: _setting(value) for name, value in report.spec.items()})
    known = {name for table in tables for name in table.columns}
    telling = _telling(abouts) - known if display.several else set()
    parts = [
        ({name: cell for name, cell in about.items() if name in telling}, table)
        for about, table in zip(abouts, tables, strict=True)
    ]
    return stacked(parts)


def _telling(abouts: Sequence[Mapping[str, Cell]]) -> set[str]:
    """Report, experiment and id, and the settings that are not the same in all reports that have them."""
    cells: dict[str, set[Cell]] = {}
    for about in abouts:
        for name, cell in about.items():
            cells.setdefault(name, set()).add(cell)
    return {"report", "experiment", "id"} | {name for name, found in cells.items() if len(found) > 1}


def _setting(value: Any) -> Cell:
    """A setting as a cell; several values with commas between them, as `attn results` has them."""
    if isinstance(value, list | tuple):
        return ",".join(str(_setting(item)) for item in value)
    return plain_text(value) if isinstance(value, str) else None if isinstance(value, Mapping) else value
