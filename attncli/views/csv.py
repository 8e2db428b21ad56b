"""Reports as one tidy table: a row a number, with columns for the axes and the tokens on them."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

import numpy as np

from attncli.report import NamedTensor, Report
from attncli.views import Display
from attncli.views.plain_text import plain_text

AXES = ("batch", "head", "layer", "query", "key", "token", "embed", "dim", "rank", "row")
TOKEN_AXES = ("query", "key", "token")
COLUMNS = (
    "report",
    "experiment",
    "name",
    *(column for axis in AXES for column in ([axis, f"{axis}_text"] if axis in TOKEN_AXES else [axis])),
    "value",
)

Row = dict[str, Any]


def _tensor_rows(name: str, tensor: NamedTensor, report: Report) -> Iterator[Row]:
    for index, value in np.ndenumerate(tensor.values):
        row: Row = {"name": name, **dict(zip(tensor.axes, index, strict=True))}
        for axis in TOKEN_AXES:
            if axis in row:
                tokens = report.tokens if axis != "key" else report.context_tokens or report.tokens
                row[f"{axis}_text"] = plain_text(tokens[row[axis]]) if tokens else ""
        is_number = np.isfinite(value) if isinstance(value, np.floating) else value >= 0
        yield row | {"value": value.item() if is_number else ""}


def _statistic_rows(name: str, value: Any, report: Report) -> Iterator[Row]:
    if isinstance(value, NamedTensor):
        yield from _tensor_rows(name, value, report)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _statistic_rows(f"{name}.{key}" if name else key, item, report)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            for row in _statistic_rows(name, item, report):
                yield row | ({"rank": number} if "row" in row else {"row": number})
    else:
        yield {"name": name, "value": "" if value is None or value != value else value}


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Statistics and tensors by name; a cell is empty where the axis is not there or there is no number."""
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for number, report in enumerate(reports):
        common = {"report": number, "experiment": report.experiment}
        for row in _statistic_rows("statistics", report.statistics, report):
            writer.writerow(common | row)
        for name, tensor in report.tensors.items():
            for row in _tensor_rows(f"tensors.{name}", tensor, report):
                writer.writerow(common | row)
