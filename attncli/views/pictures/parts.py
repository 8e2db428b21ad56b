"""What a picture of a report shows: matrices, side by side where they are compared, curves, and means."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from attncli.report import PLACES, NamedTensor, Report, Table
from attncli.views.curves import Curve, Curves, curves_of
from attncli.views.matrices import ATTENTION_AXES, Matrix, compared_names, matrices_of

MOST_MATRICES = 1600
SPREADS = {"feature0": "feature 0 over the examples", "example0": "example 0 over its features"}
# What the tensors of a comparison are called.
NAMES = {
    "weights_a": "weights of A",
    "weights_b": "weights of B",
    "difference": "weights of B minus those of A",
}


class Maps(NamedTuple):
    """Matrices of one tensor, the first of `total`; `compared` are other tensors that share their colours."""

    name: str
    matrices: list[Matrix]
    total: int
    compared: list[np.ndarray]


class Spreads(NamedTuple):
    """The mean and the standard deviation of the same numbers in several named states."""

    title: str
    names: list[str]
    means: np.ndarray
    deviations: np.ndarray


Part = Maps | Curves | Spreads


def parts_of(report: Report) -> Iterator[list[Part]]:
    """The maps of a report, compared ones together, or else the statistics of heads; means; and curves."""
    maps = {name: tensor for name, tensor in report.tensors.items() if _is_drawn(name, tensor, report)}
    maps = maps or dict(_of_heads(report.table("heads")))
    while maps:
        first = next(iter(maps))
        names = [first, *(other for other in compared_names(report, first) if other in maps)]
        yield [_maps(report, name, maps) for name in names]
        maps = {name: tensor for name, tensor in maps.items() if name not in names}
    for spreads in _spreads(report):
        yield [spreads]
    for curves in curves_of(report):
        yield [curves]
    if sharpness := report.table("sharpness"):
        factors = np.array([row["factor"] for row in sharpness], dtype=np.float64)
        norms = np.array([row["gradient_norm"] for row in sharpness], dtype=np.float64)
        yield [Curves("gradient norm by factor", "factor", [Curve("", factors, norms)], is_of_rows=True)]


def _maps(report: Report, name: str, drawn: Mapping[str, NamedTensor]) -> Maps:
    tensor = drawn[name]
    matrices = list(islice(matrices_of(report, name, tensor), MOST_MATRICES))
    total = 1 if matrices[0].shared else int(np.prod(tensor.values.shape[:-2]))
    compared = [drawn[other].values for other in compared_names(report, name) if other in drawn]
    return Maps(NAMES.get(name, name.replace("_", " ")), matrices, total, compared)


def _spreads(report: Report) -> Iterator[Spreads]:
    """Of normalised data, a feature over the examples, and an example over its features."""
    states = {
        name: report.numbers(name) for name in report.statistics if "feature0_mean" in report.numbers(name)
    }
    for key, title in SPREADS.items() if states else ():
        means, deviations = (
            np.array([numbers[f"{key}_{statistic}"] for numbers in states.values()], dtype=np.float64)
            for statistic in ("mean", "std")
        )
        yield Spreads(title, [name.replace("_", " ") for name in states], means, deviations)


def _is_drawn(name: str, tensor: NamedTensor, report: Report) -> bool:
    """Whether it is a map, an output or compared; of many heads the weights alone."""
    if tensor.axes[-2:] in (*ATTENTION_AXES, PLACES):
        return len(tensor.axes) == 2 or not name.endswith("scores") or "weights" not in report.tensors
    return len(tensor.axes) == 2 and (name == "output" or bool(compared_names(report, name)))


def _of_heads(heads: Table) -> Iterator[tuple[str, NamedTensor]]:
    """Each statistic by layer and head, one grid per stack of the model."""
    for name, cell in heads[0].items() if heads else ():
        if isinstance(cell, float) or cell is None:
            for stack, grid in heads.grids(name).items():
                if not np.isnan(grid.values).all():
                    yield f"{name} {stack}".strip(), grid
