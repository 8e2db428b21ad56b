"""What a picture of a report shows: groups of matrices that share their colours, and curves."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from attncli.report import PLACES, NamedTensor, Report, Table
from attncli.views.curves import Curves, curves_of
from attncli.views.matrices import ATTENTION_AXES, Matrix, matrices_of

MOST_MATRICES = 1600


class Maps(NamedTuple):
    """Matrices of one tensor; `total` says how many there are, where some are left out."""

    name: str
    matrices: list[Matrix]
    total: int


def parts_of(report: Report) -> Iterator[Maps | Curves]:
    """The maps of a report, or what stands for them: the statistics of heads by layer and head."""
    maps = {name: tensor for name, tensor in report.tensors.items() if _is_drawn(name, tensor, report)}
    for name, tensor in (maps or dict(_of_heads(report.table("heads")))).items():
        matrices = list(islice(matrices_of(report, name, tensor), MOST_MATRICES))
        total = 1 if matrices[0].shared else int(np.prod(tensor.values.shape[:-2]))
        yield Maps(name, matrices, total)
    yield from curves_of(report)


def _is_drawn(name: str, tensor: NamedTensor, report: Report) -> bool:
    """Maps and outputs; of many heads the weights alone; of normalised data everything."""
    if tensor.axes[-2:] in (*ATTENTION_AXES, PLACES):
        return len(tensor.axes) == 2 or not name.endswith("scores") or "weights" not in report.tensors
    return (name == "output" and len(tensor.axes) == 2) or tensor.axes == ("batch", "dim")


def _of_heads(heads: Table) -> Iterator[tuple[str, NamedTensor]]:
    """Each statistic by layer and head, for each stack of the model by itself."""
    for name, cell in heads[0].items() if heads else ():
        if isinstance(cell, float) or cell is None:
            for stack, grid in heads.grids(name).items():
                if not np.isnan(grid.values).all():
                    yield f"{name} {stack}".strip(), grid
