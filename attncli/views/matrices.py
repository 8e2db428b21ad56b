"""The matrices of a report, each with its place on the axes before and the tokens of its two sides."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attncli.report import NamedTensor, Report


@dataclass(frozen=True)
class Matrix:
    """The last two axes of a tensor; `place` says where on each axis before them.

    `shared` names those axes before on which every matrix is the same: this one stands for all. `rows` and
    `columns` are the tokens as the user wrote them, empty where an axis has none.
    """

    name: str
    axes: tuple[str, str]
    place: tuple[tuple[str, int], ...]
    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shared: tuple[str, ...] = ()

    @property
    def index(self) -> tuple[int, ...]:
        """The place as an index of arrays with the axes before."""
        return tuple(number for _, number in self.place)

    @property
    def title(self) -> str:
        """`weights (query × key), layer 0, head 3`."""
        name = f"{self.name} ({' × '.join(self.axes)})"
        if self.shared:
            return f"{name}, the same for every {' and '.join(self.shared)}"
        return titled(name, self.place)


def titled(name: str, place: tuple[tuple[str, int], ...]) -> str:
    """A name and where on which axis."""
    return "".join([name, *(f", {axis} {number}" for axis, number in place)])


def tokens_of(report: Report, axis: str) -> tuple[str, ...]:
    """The tokens along an axis; none where it counts something else."""
    if axis == "key":
        return report.context_tokens or report.tokens
    return report.tokens if axis in ("query", "token") else ()


def matrices_of(report: Report, name: str, tensor: NamedTensor) -> Iterator[Matrix]:
    """Each matrix of a tensor of two axes or more, in order; once where all are the same."""
    leading, axes = tensor.axes[:-2], (tensor.axes[-2], tensor.axes[-1])
    rows, columns = (
        tokens if len(tokens) == size else ()
        for tokens, size in zip(
            (tokens_of(report, axis) for axis in axes), tensor.values.shape[-2:], strict=True
        )
    )
    first = (0,) * len(leading)
    if leading and len(tensor.values) > 1 and (tensor.values == tensor.values[first]).all():
        place = tuple(zip(leading, first, strict=True))
        yield Matrix(name, axes, place, tensor.values[first], rows, columns, leading)
        return
    for index in np.ndindex(tensor.values.shape[:-2]):
        place = tuple(zip(leading, index, strict=True))
        yield Matrix(name, axes, place, tensor.values[index], rows, columns)


def matrices(report: Report) -> Iterator[Matrix]:
    """Every matrix of the report, tensor by tensor."""
    for name, tensor in report.tensors.items():
        if tensor.values.ndim > 1:
            yield from matrices_of(report, name, tensor)
