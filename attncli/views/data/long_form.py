"""Every number of a report as a row of its own: its name, its place on each axis, its value."""

from collections.abc import Iterator
from itertools import chain

from attncli.report import AXES, Cell, Numbers, Report, Table, Tensors
from attncli.views.data.data_table import DataTable, stacked, table_of_rows, table_of_tensors

AXIS_COLUMNS = chain.from_iterable((axis, f"{axis}_text") for axis in AXES)
ORDER = ("name", "row", *AXIS_COLUMNS, "text", "value")
Part = tuple[dict[str, Cell], DataTable]


def long_form(report: Report) -> DataTable:
    """`statistics.scores.mean` or `tensors.weights`; of a table its row is `row`, a place in a list `rank`.

    `value` is a number; what is text stands in `text`.
    """
    found = stacked([*_statistics(report), *_tensors(report, "tensors", Tensors(report.tensors))])
    return found._replace(columns={name: found.columns[name] for name in ORDER if name in found.columns})


def _statistics(report: Report) -> Iterator[Part]:
    for group, statistic in report.statistics.items():
        name = f"statistics.{group}"
        if isinstance(statistic, Tensors):
            yield from _tensors(report, name, statistic)
        elif isinstance(statistic, Numbers):
            for member, number in statistic.items():
                yield {"name": f"{name}.{member}"}, table_of_rows([{"value": number}])
        else:
            for member in dict.fromkeys(member for row in statistic for member in row):
                yield {"name": f"{name}.{member}"}, _cells(statistic, member)


def _cells(table: Table, member: str) -> DataTable:
    """The cells of one column, a row each."""
    rows: list[dict[str, Cell | list[Cell]]] = []
    for number, row in enumerate(table):
        cell = row.get(member)
        if isinstance(cell, list):
            rows += [{"row": number, "rank": rank, "value": item} for rank, item in enumerate(cell)]
        else:
            rows.append({"row": number, ("text" if isinstance(cell, str) else "value"): cell})
    return table_of_rows(rows)


def _tensors(report: Report, group: str, tensors: Tensors) -> Iterator[Part]:
    for name, tensor in tensors.items():
        yield {"name": f"{group}.{name}"}, table_of_tensors(report, {"value": tensor})
