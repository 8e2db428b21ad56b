"""The figures of heads and of rows that a report holds, as arrays by place."""

import numpy as np

from attncli.report import PLACES, NamedTensor, Report, Table


def head_figures(report: Report, axes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Each statistic as a number a head: of the survey's rows, else the mean over the queries."""
    if axes == PLACES and report.table("heads"):
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
    return {
        name: float(tensor.values[(*place, key)])
        for name, tensor in report.tensors_of("keys").items()
        if tensor.axes == (*axes, "key") and key < tensor.values.shape[-1]
    }


def _row_tensors(report: Report) -> dict[str, NamedTensor]:
    return {
        name: tensor for name, tensor in report.tensors_of("rows").items() if tensor.axes[-1:] == ("query",)
    }


def _of_survey(report: Report, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The statistics of the heads whose maps the report holds; a map is NaN where there is no head."""
    of_maps = {"encoder": ("encoder",), "cross": ("cross",)}.get(
        str(report.spec.get("maps")), ("self", "decoder")
    )
    heads = Table(row for row in report.table("heads") if row.get("stack", "self") in of_maps)
    figures = {}
    for name in heads[0] if heads else ():
        for grid in heads.grids(name).values():
            if name not in PLACES and not np.isnan(grid.values).all():
                figure = figures[name] = np.full(shape, np.nan)
                figure[: len(grid.values), : grid.values.shape[1]] = grid.values[: shape[0], : shape[1]]
    return figures
