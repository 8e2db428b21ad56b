"""The figures of heads and of rows that a report holds, as arrays by place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attncli.report import NamedTensor, Report

WHERE = ("layer", "head")


def head_figures(report: Report, axes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Each statistic as a number a head: of the survey's rows, else the mean over the queries."""
    if axes == WHERE and isinstance(report.statistics.get("heads"), list):
        return _of_survey(report, shape)
    means = {}
    for name, tensor in _row_tensors(report).items():
        if tensor.axes[:-1] == axes:
            seen = np.isfinite(tensor.values)
            total = np.sum(tensor.values, axis=-1, where=seen)
            counts = seen.sum(axis=-1)
            mean = np.divide(total, counts, out=np.full(np.shape(total), np.nan), where=counts > 0)
            means[name] = mean[tuple(slice(size) for size in shape)]
    return means


def row_figures(
    report: Report, axes: tuple[str, ...], place: tuple[int, ...], query: int
) -> dict[str, float]:
    """The statistics of one row of weights."""
    return {
        name: float(tensor.values[(*place, query)])
        for name, tensor in _row_tensors(report).items()
        if tensor.axes[:-1] == axes and query < tensor.values.shape[-1]
    }


def received_mass(
    report: Report, axes: tuple[str, ...], place: tuple[int, ...], key: int
) -> dict[str, float]:
    """The statistics of one key: what all queries give it."""
    keys = report.statistics.get("keys", {})
    return {
        name: float(tensor.values[(*place, key)])
        for name, tensor in keys.items()
        if isinstance(tensor, NamedTensor) and tensor.axes == (*axes, "key") and key < tensor.values.shape[-1]
    }


def _row_tensors(report: Report) -> dict[str, NamedTensor]:
    rows = report.statistics.get("rows", {})
    return {
        name: tensor
        for name, tensor in rows.items()
        if isinstance(tensor, NamedTensor) and tensor.axes[-1:] == ("query",)
    }


def _of_survey(report: Report, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    figures: dict[str, np.ndarray] = {}
    for row in _rows_of_stack(report.statistics["heads"], report.spec.get("maps")):
        place = tuple(row.get(axis) for axis in WHERE)
        if not all(isinstance(i, int) and 0 <= i < size for i, size in zip(place, shape, strict=True)):
            continue
        for name, value in row.items():
            if name not in WHERE and isinstance(value, int | float):
                figures.setdefault(name, np.full(shape, np.nan))[place] = value
    return {name: figure for name, figure in figures.items() if not np.isnan(figure).all()}


def _rows_of_stack(rows: Sequence[Mapping[str, Any]], maps: str | None) -> Iterator[Mapping[str, Any]]:
    """The rows about the kind of attention whose maps the report holds; the encoder's are those below it."""
    stacks = {str(row.get("module", "")).partition(".")[0] for row in rows}
    has_two = {"encoder", "decoder"} <= stacks
    for row in rows:
        in_encoder = has_two and str(row.get("module", "")).startswith("encoder")
        stack = "encoder" if in_encoder else row.get("kind", "self")
        if maps in (None, "none", stack):
            yield row
