"""Reports as one table in a CSV or Parquet file: of each report the table that was asked for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from attncli.plain_text import plain_text
from attncli.report import Cell, Report
from attncli.views import Display
from attncli.views.data import writers
from attncli.views.data.data_table import DataTable, stacked
from attncli.views.data.report_tables import main_table, table_named


def write_csv(reports: Iterable[Report], stream: IO[str], display: Display) -> None:
    """One line per row at full precision; a cell is empty where there is no value."""
    table = _table(reports, display)
    writers.write_csv(table.columns, table.blocks(), stream)


def write_parquet(reports: Iterable[Report], stream: IO[bytes], display: Display) -> None:
    """The table of csv, its columns int64, float64, bool or text."""
    table = _table(reports, display)
    writers.write_parquet(table.columns, table.blocks(), stream)


def _table(reports: Iterable[Report], display: Display) -> DataTable:
    """The table of the only report; of several one below the other, after what distinguishes the reports.

    All are read before the first is written, because a later one may have a column more.
    """
    labels: list[dict[str, Cell]] = []
    tables = []
    for number, report in enumerate(reports):
        tables.append(table_named(report, *display.show) if display.show else main_table(report))
        own: dict[str, Cell] = {"report": number, "experiment": report.experiment, "id": report.id}
        labels.append(own | {name: _setting(value) for name, value in report.spec.items()})
    known = {name for table in tables for name in table.columns}
    names = _distinguishing(labels) - known if display.several else set()
    own_cells = [{name: cell for name, cell in label.items() if name in names} for label in labels]
    return stacked(list(zip(own_cells, tables, strict=True)))


def _distinguishing(labels: Sequence[Mapping[str, Cell]]) -> set[str]:
    """Report, experiment and id, and the settings that are not the same in all reports that have them."""
    cells: dict[str, set[Cell]] = {}
    for label in labels:
        for name, cell in label.items():
            cells.setdefault(name, set()).add(cell)
    return {"report", "experiment", "id"} | {name for name, found in cells.items() if len(found) > 1}


def _setting(value: Any) -> Cell:
    """A setting as a cell; several values are separated by commas, as in `attn results`."""
    if isinstance(value, list | tuple):
        return ",".join(str(_setting(item)) for item in value)
    return plain_text(value) if isinstance(value, str) else None if isinstance(value, Mapping) else value
