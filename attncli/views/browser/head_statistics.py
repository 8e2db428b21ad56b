"""The statistics of heads, of rows and of keys that a report holds."""

import numpy as np

from attncli.report import PLACES, Report, Table

GROUPS = {"query": "rows", "key": "keys"}
# Whose rows stand in a survey beside maps of that kind; beside any others those of the text itself.
STACKS = {"encoder": ("encoder",), "cross": ("cross",)}


def head_statistics(report: Report, axes: tuple[str, ...], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Each statistic as a number a head: of the survey's rows, else the mean over the queries."""
    if axes == PLACES and report.table("heads"):
        return _of_survey(report, shape)
    return {
        name: np.asarray(np.ma.filled(np.ma.masked_invalid(tensor.values).mean(axis=-1), np.nan))[
            tuple(map(slice, shape))
        ]
        for name, tensor in report.tensors_of("rows").items()
        if tensor.axes == (*axes, "query")
    }


def _of_survey(report: Report, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The statistics of the heads whose maps the report holds; a map is NaN where there is no head."""
    stacks = STACKS.get(str(report.spec.get("maps")), ("self", "decoder"))
    heads = Table(row for row in report.table("heads") if row.get("stack", "self") in stacks)
    found = {}
    for name in heads[0] if heads else ():
        for grid in heads.grids(name).values():
            if name not in PLACES and not np.isnan(grid.values).all():
                values = grid.values[: shape[0], : shape[1]]
                missing = [(0, size - there) for size, there in zip(shape, values.shape, strict=True)]
                found[name] = np.pad(values, missing, constant_values=np.nan)
    return found


def token_statistics(
    report: Report, axes: tuple[str, ...], place: tuple[int, ...], axis: str, token: int
) -> dict[str, float]:
    """The statistics of one query's row of weights; of a key what all queries give it."""
    return {
        name: float(tensor.values[(*place, token)])
        for name, tensor in report.tensors_of(GROUPS.get(axis, "")).items()
        if tensor.axes == (*axes, axis) and token < tensor.values.shape[-1]
    }
