"""What a report has to browse: its maps between queries and keys, and the figures of each head."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from attncli.report import NamedTensor, Report
from attncli.views.browser.head_figures import head_figures
from attncli.views.matrices import Matrix, matrices_of

SIDES = (("query", "key"), ("query_block", "key_block"))
# The first of these is what one opens a report for.
FIRST_NAMES = ("weights", "pooled_mean", "pooled_max")
WHOLE_HEAD = re.compile(r"weights_([0-9]+)_([0-9]+)")

Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """The maps of one name, by their place on the axes before queries and keys: layers and heads.

    The last of these axes runs to the right; those before it run down. A whole head among pooled ones is
    the one map of its place.
    """

    report: Report
    name: str
    axes: tuple[str, ...]
    shape: Place
    maps: Mapping[Place, Matrix] = field(repr=False)

    @property
    def num_rows(self) -> int:
        """How many stand below each other: layers, batches; one where there are heads alone."""
        return prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        """How many stand side by side: heads."""
        return self.shape[-1] if self.shape else 1

    @property
    def num_places(self) -> int:
        """How many there are."""
        return self.num_rows * self.num_columns

    def place(self, number: int) -> Place:
        """The place of that number, counted along the rows."""
        return tuple(map(int, np.unravel_index(number, self.shape))) if self.shape else ()

    def row_name(self, row: int) -> str:
        """The layer, or the numbers on all axes but the last."""
        return ".".join(map(str, self.place(row * self.num_columns)[:-1]))

    def name_of(self, number: int) -> str:
        """`layer 5, head 11`."""
        return ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, self.place(number), strict=True))

    @cached_property
    def figures(self) -> dict[str, np.ndarray]:
        """The statistics of the heads, each a number a place; NaN where there is none."""
        return head_figures(self.report, self.axes, self.shape)


def grids(report: Report) -> list[Grid]:
    """Everything to browse in a report, the weights first; nothing where no tensor has queries and keys."""
    whole: dict[Place, Matrix] = {}
    found = []
    for name, tensor in report.tensors.items():
        if tensor.axes[-2:] not in SIDES or 0 in tensor.values.shape:
            continue
        numbers = WHOLE_HEAD.fullmatch(name)
        if numbers and tensor.values.ndim == 2:
            (matrix,) = matrices_of(report, "weights", tensor)
            place = int(numbers[1]), int(numbers[2])
            named = replace(matrix, place=tuple(zip(("layer", "head"), place, strict=True)))
            whole[place] = named
            continue
        found.append(_grid(report, name, tensor))
    order = {name: i for i, name in enumerate(FIRST_NAMES)}
    found.sort(key=lambda grid: order.get(grid.name, len(order)))
    return [_with_whole_heads(grid, whole) for grid in found] or list(_whole_heads(report, whole))


def _grid(report: Report, name: str, tensor: NamedTensor) -> Grid:
    maps = {matrix.index: matrix for matrix in matrices_of(report, name, tensor)}
    stands_for_all = next(iter(maps.values())).shared
    shape = (1,) * len(stands_for_all) if stands_for_all else tensor.values.shape[:-2]
    return Grid(report, name, tensor.axes[:-2], shape, maps)


def _with_whole_heads(grid: Grid, whole: Mapping[Place, Matrix]) -> Grid:
    if grid.axes != ("layer", "head") or grid.name != "pooled_mean":
        return grid
    return replace(grid, maps={**grid.maps, **{place: whole[place] for place in whole if place in grid.maps}})


def _whole_heads(report: Report, whole: Mapping[Place, Matrix]) -> Iterator[Grid]:
    """Heads without a map of all of them."""
    for place, matrix in whole.items():
        yield Grid(report, f"weights of layer {place[0]}, head {place[1]}", (), (), {(): matrix})
