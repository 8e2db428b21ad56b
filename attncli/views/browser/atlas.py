"""What a report has to browse: its maps between queries and keys, and the statistics of heads and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np

from attncli.report import PLACES, Report, Table
from attncli.views.matrices import ATTENTION_AXES, Matrix, matrices_of, place_names, whole_heads

# The first of these is what one opens a report for.
FIRST_NAMES = ("weights", "pooled_mean", "pooled_max")
GROUPS = {"query": "rows", "key": "keys"}
# The stacks of a survey whose rows belong to maps of that kind; any other maps belong to the text itself.
STACKS = {"encoder": ("encoder",), "cross": ("cross",)}

Place = tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """The maps of one name, by their place on the leading axes: layers and heads.

    The last of these axes runs to the right; those before it run down. The whole weights of a head replace
    its pooled map.
    """

    report: Report
    name: str
    axes: tuple[str, ...]
    shape: Place
    maps: Mapping[Place, Matrix] = field(repr=False)

    @property
    def num_rows(self) -> int:
        """Rows below each other: layers, batches; one where there are heads alone."""
        return prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        """Maps side by side: heads."""
        return self.shape[-1] if self.shape else 1

    @property
    def num_places(self) -> int:
        """All maps."""
        return prod(self.shape)

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
        """The statistics of the heads, one number per place; NaN where there is none."""
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
    tensor = report.tensors[name]
    maps = {matrix.index: matrix for matrix in matrices_of(report, name, tensor)}
    shared = next(iter(maps.values())).shared
    shape = (1,) * len(shared) if shared else tensor.values.shape[:-2]
    for place in maps.keys() & whole.keys():
        (matrix,) = matrices_of(report, "weights", report.tensors[whole[place]])
        maps[place] = replace(matrix, place=tuple(zip(PLACES, place, strict=True)))
    return Grid(report, name, tensor.axes[:-2], shape, maps)


def head_statistics(report: Report, axes: tuple[str, ...], shape: Place) -> dict[str, np.ndarray]:
    """Each statistic as one number per head: from the survey's rows, else the mean over the queries."""
    if axes == PLACES and report.table("heads"):
        return _survey_statistics(report, shape)
    part = tuple(map(slice, shape))
    return {
        name: np.asarray(np.ma.filled(np.ma.masked_invalid(tensor.values).mean(axis=-1), np.nan))[part]
        for name, tensor in report.tensors_of("rows").items()
        if tensor.axes == (*axes, "query")
    }


def _survey_statistics(report: Report, shape: Place) -> dict[str, np.ndarray]:
    """The statistics of the heads whose maps the report holds; NaN for a map without a head."""
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
    report: Report, axes: tuple[str, ...], place: Place, axis: str, token: int
) -> dict[str, float]:
    """The statistics of one query's row of weights; of a key what all queries give it."""
    return {
        name: float(tensor.values[(*place, token)])
        for name, tensor in report.tensors_of(GROUPS.get(axis, "")).items()
        if tensor.axes == (*axes, axis) and token < tensor.values.shape[-1]
    }
