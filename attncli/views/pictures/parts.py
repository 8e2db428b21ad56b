"""What a picture of a report shows: groups of matrices that share their colours, and lines."""

from collections.abc import Iterator
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from attncli.report import NamedTensor, Report
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
        for name, tensor in _head_figures(report.statistics.get("heads", [])):
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


def _head_figures(rows: list[dict[str, Any]]) -> Iterator[tuple[str, NamedTensor]]:
    """Each figure by layer and head, for each stack of the model by itself."""
    if not rows or not all(isinstance(rows[0].get(axis), int) for axis in ("layer", "head")):
        return

    def stack(row: dict[str, Any]) -> str:
        module = str(row.get("module", "")).split(".")[0]
        return f"{module} {row.get('kind')}" if module in ("encoder", "decoder") else ""

    names = [name for name, value in rows[0].items() if isinstance(value, float) or value is None]
    for label, members in groupby(sorted(rows, key=stack), key=stack):
        placed = {(row["layer"], row["head"]): row for row in members}
        layers, heads = (max(place[i] for place in placed) + 1 for i in (0, 1))
        for name in names:
            grid = np.full((layers, heads), np.nan)
            for place, row in placed.items():
                if row[name] is not None:
                    grid[place] = row[name]
            if not np.isnan(grid).all():
                yield f"{name} {label}".strip(), NamedTensor(("layer", "head"), grid)


def _curves(report: Report) -> Iterator[Lines]:
    """The softmax curve, and how its row sharpens with the logits' factor."""
    x, y = (report.tensors.get(name) for name in ("curve_logits", "curve_weights"))
    if x is not None and y is not None and x.values.shape == y.values.shape and x.values.ndim == 1:
        line = Line("", x.values.tolist(), y.values.tolist())
        yield Lines("softmax over a row of logits", "logit", [line], marked=False)
    rows = report.statistics.get("sharpness", [])
    if rows and isinstance(rows[0].get("softmax"), list) and "factor" in rows[0]:
        lines = [
            Line(f"factor {row['factor']:g}", list(range(len(row["softmax"]))), row["softmax"])
            for row in rows
        ]
        yield Lines("softmax of the logits times a factor", "logit's place", lines, marked=True)
