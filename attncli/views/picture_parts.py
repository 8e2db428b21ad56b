"""What a picture of a report shows: groups of matrices that share their colours, and lines."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from attncli.report import NamedTensor, Report, Table
from attncli.views.matrices import Matrix, matrices_of

MAP_ENDS = (("query", "key"), ("query_block", "key_block"), ("layer", "head"))
MOST_MATRICES = 1600


class Maps(NamedTuple):
    """Matrices of one tensor; `total` says how many there are, where some are left out."""

    name: str
    matrices: list[Matrix]
    total: int


class Line(NamedTuple):
    """Numbers over numbers, with a label where there are several lines."""

    label: str
    x: list[float]
    y: list[float]


class Lines(NamedTuple):
    """A chart of lines; `marked` where its points are few and each counts."""

    title: str
    x_name: str
    lines: list[Line]
    marked: bool


Part = Maps | Lines


def parts_of(report: Report) -> Iterator[Part]:
    """The maps of a report, or what stands for them: the figures of heads by layer and head."""
    drawn = [(name, tensor) for name, tensor in report.tensors.items() if _is_drawn(name, tensor, report)]
    for name, tensor in drawn:
        yield _maps(report, name, tensor)
    if not drawn:
        for name, tensor in _head_figures(report.table("heads")):
            yield _maps(report, name, tensor)
    yield from _curves(report)


def _is_drawn(name: str, tensor: NamedTensor, report: Report) -> bool:
    """Maps and outputs; of many heads the weights alone; of normalised data everything."""
    if tensor.axes[-2:] in MAP_ENDS:
        return len(tensor.axes) == 2 or not name.endswith("scores") or "weights" not in report.tensors
    return (name == "output" and len(tensor.axes) == 2) or tensor.axes == ("batch", "dim")


def _maps(report: Report, name: str, tensor: NamedTensor) -> Maps:
    matrices = list(islice(matrices_of(report, name, tensor), MOST_MATRICES))
    total = 1 if matrices[0].shared else int(np.prod(tensor.values.shape[:-2]))
    return Maps(name, matrices, total)


def _head_figures(heads: Table) -> Iterator[tuple[str, NamedTensor]]:
    """Each statistic by layer and head, for each stack of the model by itself."""
    names = (
        [name for name, value in heads[0].items() if isinstance(value, float) or value is None]
        if heads
        else []
    )
    for name in names:
        for stack, grid in heads.grids(name).items():
            if not np.isnan(grid.values).all():
                yield f"{name} {stack}".strip(), grid


def _curves(report: Report) -> Iterator[Lines]:
    """The softmax curve, and how its row sharpens with the logits' factor."""
    x, y = (report.tensors.get(name) for name in ("curve_logits", "curve_weights"))
    if x is not None and y is not None and x.values.shape == y.values.shape and x.values.ndim == 1:
        line = Line("", x.values.tolist(), y.values.tolist())
        yield Lines("softmax over a row of logits", "logit", [line], marked=False)
    lines = [
        Line(f"factor {row['factor']:g}", list(range(len(weights))), np.array(weights, float).tolist())
        for row in report.table("sharpness")
        if isinstance(weights := row["softmax"], list)
    ]
    if lines:
        yield Lines("softmax of the logits times a factor", "logit's place", lines, marked=True)
