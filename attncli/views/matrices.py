"""The matrices of a report, each with its place on the axes before and the tokens of its two sides."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from attncli.report import NamedTensor, Report, whole_head_name

ATTENTION_AXES = (("query", "key"), ("query_block", "key_block"))
KEY_AXES = ("key", "key_block")
BLOCK_AXES = ATTENTION_AXES[1]
# What has the axes of weights and is none.
OTHERS = ("scores", "bias")


@dataclass(frozen=True)
class Matrix:
    """The last two axes of a tensor; `place` says where on each axis before them.

    `shared` names those axes before on which every matrix is the same: this one stands for all. `rows` and
    `columns` are the tokens as the user wrote them, empty where an axis has none. `hidden` says of weights
    which keys a query may not see.
    """

    name: str
    axes: tuple[str, str]
    place: tuple[tuple[str, int], ...]
    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shared: tuple[str, ...] = ()
    hidden: np.ndarray | None = None

    @property
    def index(self) -> tuple[int, ...]:
        """The place as an index of arrays with the axes before."""
        return tuple(number for _, number in self.place)

    @property
    def is_weights(self) -> bool:
        """Whether its numbers are weights, whose colours start at 0."""
        return is_weights(self.name, self.axes)

    @property
    def drawn(self) -> np.ndarray:
        """The numbers as they are drawn: none where a key is hidden."""
        return self.values if self.hidden is None else np.where(self.hidden, np.nan, self.values)

    @property
    def title(self) -> str:
        """`weights (query × key), layer 0, head 3`."""
        name = f"{self.name} ({' × '.join(self.axes)})"
        if self.shared:
            return f"{name}, the same for every {' and '.join(self.shared)}"
        return ", ".join([name, *place_names(self.place)])


def place_names(place: Iterable[tuple[str, int]]) -> list[str]:
    """`layer 0` and `head 3`."""
    return [f"{axis} {number}" for axis, number in place]


def tokens_of(report: Report, axis: str) -> tuple[str, ...]:
    """The tokens along an axis; none where it counts something else."""
    if axis in ("key", "column"):
        return report.context_tokens or report.tokens
    if axis == "query":
        return report.tokens[report.first_query :]
    return report.tokens if axis in ("token", "row") else ()


def first_position(report: Report, axis: str) -> int:
    """The position of the first place along an axis."""
    return report.first_query if axis == "query" else 0


def matrices_of(report: Report, name: str, tensor: NamedTensor) -> Iterator[Matrix]:
    """Each matrix of a tensor of two axes or more, in order; once where all are the same."""
    leading, axes = tensor.axes[:-2], (tensor.axes[-2], tensor.axes[-1])
    rows, columns = (
        tokens if len(tokens) == size else ()
        for tokens, size in zip(
            (tokens_of(report, axis) for axis in axes), tensor.values.shape[-2:], strict=True
        )
    )
    shared, hidden = shared_axes(tensor), hidden_cells(report, name, tensor)
    for index in [(0,) * len(shared)] if shared else np.ndindex(tensor.values.shape[:-2]):
        place = tuple(zip(leading, index, strict=True))
        own = None if hidden is None else hidden[index]
        yield Matrix(name, axes, place, tensor.values[index], rows, columns, shared, own)


def matrices(report: Report) -> Iterator[Matrix]:
    """Every matrix of the report, tensor by tensor."""
    for name, tensor in report.tensors.items():
        if tensor.values.ndim > 1:
            yield from matrices_of(report, name, tensor)


def is_weights(name: str, axes: tuple[str, ...]) -> bool:
    """Whether a tensor with these last two axes holds weights, or differences of weights."""
    return axes in ATTENTION_AXES and not name.endswith(OTHERS)


def scale_of(scale: str | None, axes: tuple[str, ...]) -> str:
    """How colours spread: as asked, else as suits; weights of blocks differ by orders of magnitude."""
    return scale or ("log" if axes == BLOCK_AXES else "linear")


def hidden_cells(report: Report, name: str, tensor: NamedTensor) -> np.ndarray | None:
    """Which weights are of keys that a query may not see: their scores are no number.

    Without scores it is every later key, where none of them has a weight; None where nothing is known.
    """
    if not is_weights(name, tensor.axes[-2:]) or name == "difference":
        return None
    scores = report.tensors.get(name.replace("weights", "scores")) if "weights" in name else None
    if scores is not None and (scores.axes, scores.values.shape) == (tensor.axes, tensor.values.shape):
        hidden: np.ndarray = ~np.isfinite(scores.values)
        return hidden
    *_, num_queries, num_keys = tensor.values.shape
    later = np.triu(np.ones((num_queries, num_keys), dtype=bool), 1 + report.first_query)
    if (
        num_queries + report.first_query != num_keys
        or report.context_tokens
        or np.nan_to_num(tensor.values[..., later]).any()
    ):
        return None
    return np.broadcast_to(later, tensor.values.shape)


def compared_names(report: Report, name: str) -> list[str]:
    """The tensors that are looked at beside this one, with the same colours: wrong and right, A and B."""
    pairs = [*report.pairs.values(), ("weights_a", "weights_b")]
    return [other for pair in pairs if name in pair for other in pair if other != name]


def shared_axes(tensor: NamedTensor) -> tuple[str, ...]:
    """The axes before the last two, where there are several matrices on them and all are the same."""
    leading, values = tensor.axes[:-2], tensor.values
    is_shared = leading and len(values) > 1 and (values == values[(0,) * len(leading)]).all()
    return leading if is_shared else ()


def whole_heads(report: Report) -> dict[tuple[int, ...], str]:
    """The tensors with the whole weights of one head, by its layer and head among the maps of blocks."""
    pooled = report.tensors.get("pooled_mean")
    if pooled is None or pooled.axes[:-2] != ("layer", "head"):
        return {}
    names = {place: whole_head_name(*place) for place in np.ndindex(pooled.values.shape[:2])}
    maps = {name for name, tensor in report.tensors.items() if tensor.axes == ("query", "key")}
    return {place: name for place, name in names.items() if name in maps}
