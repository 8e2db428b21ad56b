"""What a report has to browse: its maps between queries and keys, and the statistics of each head."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from attncli.report import PLACES, Report
from attncli.views.browser.head_statistics import head_statistics
from attncli.views.matrices import ATTENTION_AXES, Matrix, matrices_of, place_names, whole_heads

# The first of these is what one opens a report for.
FIRST_NAMES = ("weights", "pooled_mean", "pooled_max")

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
        return ", ".join(place_names(zip(self.axes, self.place(number), strict=True)))

    @cached_property
    def statistics(self) -> dict[str, np.ndarray]:
        """The statistics of the heads, each a number a place; NaN where there is none."""
        return head_statistics(self.report, self.axes, self.shape)


def grids(report: Report) -> list[Grid]:
    """Everything to browse in a report, the weights first; nothing where no tensor has queries and keys."""
    whole = whole_heads(report)
    names = [
        name
        for name, tensor in report.tensors.items()
        if tensor.axes[-2:] in ATTENTION_AXES and tensor.values.size and name not in whole.values()
    ]
    order = {name: i for i, name in enumerate(FIRST_NAMES)}
    names.sort(key=lambda name: order.get(name, len(order)))
    return [_grid(report, name, whole if name == "pooled_mean" else {}) for name in names]


def _grid(report: Report, name: str, whole: Mapping[Place, str]) -> Grid:
    """The maps of a tensor, and in their places the whole weights of heads."""
    tensor = report.tensors[name]
    maps = {matrix.index: matrix for matrix in matrices_of(report, name, tensor)}
    stands_for_all = next(iter(maps.values())).shared
    shape = (1,) * len(stands_for_all) if stands_for_all else tensor.values.shape[:-2]
    for place in maps.keys() & whole.keys():
        (matrix,) = matrices_of(report, "weights", report.tensors[whole[place]])
        maps[place] = replace(matrix, place=tuple(zip(PLACES, place, strict=True)))
    return Grid(report, name, tensor.axes[:-2], shape, maps)
