"""The arrays of a report by name, and all else of it as JSON."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from attncli.report import NamedTensor, Report, Tensors
from attncli.views.json import pieces


def named_tensors(report: Report) -> dict[str, NamedTensor]:
    """The tensors by their names, and those of the statistics as `rows.entropy`."""
    return {**report.tensors, **dict(_of_statistics(report))}


def _of_statistics(report: Report) -> Iterator[tuple[str, NamedTensor]]:
    for group, members in report.statistics.items():
        if isinstance(members, Tensors):
            yield from ((f"{group}.{name}", tensor) for name, tensor in members.items())


def json_without_arrays(report: Report) -> str:
    """The report's JSON form with null in the place of every array."""
    fields: dict[str, Any] = report.fields()
    fields["tensors"] = {name: {**tensor, "values": None} for name, tensor in fields["tensors"].items()}
    fields["statistics"] = {
        group: dict.fromkeys(members) if isinstance(members, Tensors) else members
        for group, members in report.statistics.items()
    }
    return "".join(pieces(fields))


def contiguous(tensor: NamedTensor) -> np.ndarray:
    """The numbers in order, little end first."""
    return np.ascontiguousarray(tensor.values, dtype=tensor.values.dtype.newbyteorder("<"))
