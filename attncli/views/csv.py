"""Reports as one tidy table: one row per number, with columns for the axes and the tokens on them."""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import Any, TextIO

from attncli.plain_text import plain_text
from attncli.report import NamedTensor, Numbers, Report, Statistic, Tensors, plain
from attncli.views import Display

AXES = (
    "batch", "head", "layer", "query", "key", "token", "embed", "dim", "rank", "row", "point",
    "query_block", "key_block", "bucket", "vector",
)  # fmt: skip
TOKEN_AXES = ("query", "key", "token")
AXIS_COLUMNS = {axis: [axis, f"{axis}_text"] if axis in TOKEN_AXES else [axis] for axis in AXES}
COLUMNS = ["report", "experiment", "name", *chain(*AXIS_COLUMNS.values()), "value"]

Row = dict[str, Any]


def _axis_cells(axis: str, count: int, report: Report) -> list[tuple[Any, ...]]:
    """The cells that each index of an axis gives to a row: the index and, on a token axis, the token."""
    if axis not in TOKEN_AXES:
        return [(i,) for i in range(count)]
    tokens = report.context_tokens or report.tokens if axis == "key" else report.tokens
    return [(i, plain_text(tokens[i]) if tokens else "") for i in range(count)]


def _tensor_rows(name: str, tensor: NamedTensor, report: Report) -> Iterator[Row]:
    columns = list(chain(*(AXIS_COLUMNS[axis] for axis in tensor.axes)))
    sizes = zip(tensor.axes, tensor.values.shape, strict=True)
    places = product(*(_axis_cells(axis, count, report) for axis, count in sizes))
    for place, value in zip(places, plain(tensor.values.ravel()), strict=True):
        row: Row = dict(zip(columns, chain(*place), strict=True))
        row["name"], row["value"] = name, value
        yield row


def _statistic_rows(name: str, statistic: Statistic, report: Report) -> Iterator[Row]:
    """A row for each number; one of a list in a table has its place as `row`, its table's row as `rank`."""
    if isinstance(statistic, Tensors):
        for member, tensor in statistic.items():
            yield from _tensor_rows(f"{name}.{member}", tensor, report)
    elif isinstance(statistic, Numbers):
        for member, number in statistic.items():
            yield {"name": f"{name}.{member}", "value": plain(number)}
    else:
        for rank, row in enumerate(statistic):
            for column, cell in row.items():
                if isinstance(cell, list):
                    places = [({"row": i, "rank": rank}, item) for i, item in enumerate(cell)]
                else:
                    places = [({"row": rank}, cell)]
                for place, item in places:
                    value = plain_text(item) if isinstance(item, str) else plain(item)
                    yield {"name": f"{name}.{column}", **place, "value": value}


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Statistics and tensors by name; a cell is empty where the axis is not there or there is no number."""
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for number, report in enumerate(reports):
        common = {"report": number, "experiment": report.experiment}
        for name, statistic in report.statistics.items():
            for row in _statistic_rows(f"statistics.{name}", statistic, report):
                writer.writerow(common | row)
        for name, tensor in report.tensors.items():
            for row in _tensor_rows(f"tensors.{name}", tensor, report):
                writer.writerow(common | row)
