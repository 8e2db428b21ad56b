"""The matrices, curves and parts of a report, and the downsampling of matrices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import nearest
from attncli.records.kinds import head_units, read_result
from attncli.records.report import (
    PLACES,
    NamedTensor,
    Picture,
    Report,
    Statistic,
    Table,
    Tensors,
    whole_head_name,
)
from attncli.settings import known_spec_class
from attncli.system.plain_text import plain_text

ATTENTION_AXES = (("query", "key"), ("query_block", "key_block"))
KEY_AXES = ("key", "key_block")
BLOCK_AXES = ATTENTION_AXES[1]
# Tensors that have the axes of weights but are not weights.
NOT_WEIGHTS = ("scores", "bias", "probability", "pairs")


@dataclass(frozen=True)
class Matrix:
    """The last two axes of a tensor; `place` is the index on each leading axis.

    `shared` lists leading axes along which all matrices are equal, so that this one represents them all.
    `rows` and `columns` are the tokens as the user wrote them, empty if an axis has none. `hidden` is True
    for keys that a query may not attend; `is_causal` is true if all later keys are hidden. If the first axis
    counts steps, `step` is the step's number.
    """

    name: str
    axes: tuple[str, str]
    place: tuple[tuple[str, int], ...]
    values: np.ndarray
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    shared: tuple[str, ...] = ()
    hidden: np.ndarray | None = None
    is_causal: bool = False
    step: int | None = None

    @property
    def index(self) -> tuple[int, ...]:
        """The place as an index into arrays that have the leading axes."""
        return tuple(number for _, number in self.place)

    @property
    def shown_place(self) -> tuple[tuple[str, int], ...]:
        """The place, with a step's number instead of its index."""
        return self.place if self.step is None else (("step", self.step), *self.place[1:])

    @property
    def is_weights(self) -> bool:
        """True if the numbers are weights, so that colours start at 0."""
        return is_weights(self.name, self.axes)

    @property
    def drawn(self) -> np.ndarray:
        """The numbers to draw, with NaN for hidden keys."""
        return self.values if self.hidden is None else np.where(self.hidden, np.nan, self.values)

    @property
    def title(self) -> str:
        """A title like `weights (query × key), layer 0, head 3`."""
        name = f"{in_words(self.name)} ({axes_in_words(self.axes)})"
        if self.shared:
            return f"{name}, the same for every {' and '.join(self.shared)}"
        return ", ".join([name, *place_names(self.shown_place)])


WORDS = {
    "pooled_mean": "block means",
    "pooled_max": "block maxima",
    "query_block": "query block",
    "key_block": "key block",
}


def in_words(name: str) -> str:
    """Return the displayed name of a tensor or axis, which is usually its name."""
    return WORDS.get(name, name)


def axes_in_words(axes: Iterable[str]) -> str:
    """Return the axes in words, like `query × key`."""
    return " × ".join(map(in_words, axes))


def place_names(place: Iterable[tuple[str, int]]) -> list[str]:
    """Return `batch 0` and `head 5:3` if a head follows its layer, otherwise `layer 5` and `head 3`."""
    names: list[str] = []
    before = ("", 0)
    for axis, number in place:
        if (before[0], axis) == PLACES:
            names[-1] = f"head {before[1]}:{number}"
        else:
            names.append(f"{axis} {number}")
        before = axis, number
    return names


def head_name(place: Mapping[str, Any]) -> str:
    """Return the name that a model's head has everywhere, like `5:3`."""
    return f"{place['layer']}:{place['head']}"


def pictured(report: Report) -> dict[str, list[Picture]]:
    """Return the tensors whose last axis counts the tokens of a picture, each with its pictures."""
    by_name: dict[str, list[Picture]] = {}
    side = "context_tokens" if report.context_tokens else "tokens"
    for name, tensor in report.tensors.items():
        is_of_keys = tensor.axes[-1:] == ("key",)
        pictures = [picture for picture in report.pictures if picture.axis == side and any(picture.boxes)]
        if is_of_keys and pictures and not name.endswith(("scores", "bias")):
            by_name[name] = pictures
    return by_name


OF_CONTEXT = ("key", "column", "source", "way")
"""The axes that count the tokens of a context, if the report has one."""


def axis_tokens(report: Report, axis: str) -> tuple[str, ...]:
    """Return the tokens along an axis, or none if the axis counts something else."""
    if axis in OF_CONTEXT:
        return report.context_tokens or report.tokens
    if axis == "query":
        return report.tokens[report.first_query :]
    return report.tokens if axis in ("token", "row") else ()


def places_along(report: Report, axis: str, count: int) -> list[int]:
    """Return the labels of an axis: positions beginning with the first, or the numbers of steps."""
    if axis == "step" and (steps := step_numbers(report)) is not None and len(steps) == count:
        return [int(step) for step in steps]
    first = first_position(report, axis)
    return list(range(first, first + count))


def step_numbers(report: Report) -> np.ndarray | None:
    """Return the step numbers, the x axis of other numbers, or None if the report is not about steps."""
    numbers = report.tensors.get("step")
    return None if numbers is None or numbers.axes != ("point",) else numbers.values


def first_position(report: Report, axis: str) -> int:
    """Return the position of the first place along an axis."""
    return report.first_query if axis == "query" else 0


def tensor_matrices(report: Report, name: str, tensor: NamedTensor) -> Iterator[Matrix]:
    """Return each matrix of a tensor with two or more axes, in order; only one if all are equal."""
    *leading, row_axis, column_axis = tensor.axes
    *_, num_rows, num_columns = tensor.values.shape
    rows = tokens if len(tokens := axis_tokens(report, row_axis)) == num_rows else ()
    columns = tokens if len(tokens := axis_tokens(report, column_axis)) == num_columns else ()
    shared, hidden = shared_axes(tensor), hidden_cells(name, tensor)
    steps = places_along(report, "step", len(tensor.values)) if leading[:1] == ["step"] else None
    for index in [(0,) * len(shared)] if shared else np.ndindex(tensor.values.shape[:-2]):
        place = tuple(zip(leading, index, strict=True))
        yield Matrix(
            name,
            (row_axis, column_axis),
            place,
            tensor.values[index],
            rows,
            columns,
            shared,
            hidden=None if hidden is None else hidden[index],
            is_causal=tensor.mask is not None and tensor.mask.causal,
            step=None if steps is None else steps[index[0]],
        )


def matrices(report: Report) -> Iterator[Matrix]:
    """Return every matrix of the report, tensor by tensor."""
    for name, tensor in report.tensors.items():
        if tensor.values.ndim > 1:
            yield from tensor_matrices(report, name, tensor)


def is_weights(name: str, axes: tuple[str, ...]) -> bool:
    """Return True if a tensor with these last two axes holds weights or differences between weights."""
    return axes in ATTENTION_AXES and not name.endswith(NOT_WEIGHTS)


# What a tensor's numbers are, where its name does not say so.
UNITS = {
    **dict.fromkeys(("loss", "kl", "jensen_shannon", "worst", "needle"), "nats"),
    "difference": "weight of B minus A",
}


def tensor_unit(name: str, axes: tuple[str, ...]) -> str:
    """Return what a tensor's numbers are: weight, score, nats, tokens or logit; for others, the tensor's
    name.

    A grid of heads is named after its statistic, perhaps with a stack: `entropy decoder`; for a store `mean
    of entropy` or `entropy.mean by head_dim and causal`.
    """
    name = name.removeprefix("mean of ").partition(" ")[0]
    if name.endswith("scores"):
        return "score"
    if unit := UNITS.get(name) or UNITS.get(name.partition(".")[0]):
        return unit
    if is_weights(name, axes[-2:]):
        return "weight"
    units = head_units()
    return units.get(name) or units.get(name.partition(".")[0]) or name.replace("_", " ")


def colour_scale(scale: str | None, axes: tuple[str, ...]) -> str:
    """Return the requested scale, or else a suitable one: weights of blocks differ by orders of magnitude."""
    return scale or ("log" if axes == BLOCK_AXES else "linear")


def hidden_cells(name: str, tensor: NamedTensor) -> np.ndarray | None:
    """Return True for weights of keys that a query may not attend, or None if unknown or if none are hidden.

    A difference is drawn whole: 0 where neither side attends. Hidden scores are missing numbers.
    """
    if tensor.mask is None or name == "difference" or not is_weights(name, tensor.axes[-2:]):
        return None
    *_, num_queries, num_keys = tensor.values.shape
    hidden = tensor.mask.hidden(num_queries, num_keys)
    return None if hidden is None else np.broadcast_to(hidden, tensor.values.shape)


def compared_names(report: Report, name: str) -> list[str]:
    """Return the names of the tensors that share this tensor's colours: wrong and right, A and B."""
    pairs = [*report.pairs.values(), ("weights_a", "weights_b")]
    return [other for pair in pairs if name in pair for other in pair if other != name]


def shared_axes(tensor: NamedTensor) -> tuple[str, ...]:
    """Return the leading axes if several matrices lie along them and are all equal."""
    leading, values = tensor.axes[:-2], tensor.values
    is_shared = leading and len(values) > 1 and (values == values[(0,) * len(leading)]).all()
    return leading if is_shared else ()


def whole_heads(report: Report) -> dict[tuple[int, ...], str]:
    """Return the names of the tensors that hold all the weights of one head, by layer and head."""
    pooled = report.tensors.get("pooled_mean")
    if pooled is None or pooled.axes[:-2] != ("layer", "head"):
        return {}
    names = {place: whole_head_name(*place) for place in np.ndindex(pooled.values.shape[:2])}
    maps = {name for name, tensor in report.tensors.items() if tensor.axes == ("query", "key")}
    return {place: name for place, name in names.items() if name in maps}


SCORES = ("scores", "scaled_scores")


def _part_of_tensor(name: str, tensor: NamedTensor) -> str:
    """Return the part to which a tensor belongs; `all` for the input, projections and curves."""
    if name in SCORES:
        return "scores"
    if tensor.axes[-2:] in ATTENTION_AXES or tensor.axes[-1:] == ("key",):
        return "weights"
    return "output" if name == "output" else "all"


def _part_of_statistic(statistic: Statistic) -> str:
    return "rows" if isinstance(statistic, Tensors) else "statistics"


OF_REPORTS = ("weights", "scores", "rows", "output", "statistics")
"""The parts that a report may have."""


def parts_of(report: Report) -> list[str]:
    """Return the parts that a report has."""
    parts = {_part_of_tensor(name, tensor) for name, tensor in report.tensors.items()}
    parts |= {_part_of_statistic(statistic) for statistic in report.statistics.values()}
    parts |= set() if report.picture_maps is None else {"weights"}
    return [part for part in OF_REPORTS if part in parts]


def part_names(report: Report) -> set[str]:
    """Return the names of the tensors, tables and numbers to show. Row statistics belong to a tensor."""
    beside = {name for name, statistic in report.statistics.items() if isinstance(statistic, Tensors)}
    return {*report.tensors, *report.statistics} - beside


MOST_NAMES = 60


def listed_names(report: Report) -> list[str]:
    """Return these names, tables and numbers first, as many as a message can list."""
    names = part_names(report)
    ordered = [name for name in (*report.statistics, *report.tensors) if name in names]
    return ordered if len(ordered) <= MOST_NAMES else [*ordered[:MOST_NAMES], "..."]


def missing_parts(report: Report, parts: Sequence[str], found: Sequence[str]) -> list[str]:
    """Return a message, with a suggestion, for each missing part or name."""
    has = ", ".join(found) or "no separate parts: use --show all"
    spec_class = known_spec_class(report.experiment, report.spec)
    shown_by = spec_class.parts_elsewhere if spec_class else {}
    messages = []
    for part in parts:
        if part in (*found, "all"):
            continue
        message = f"the report has no part {part}{nearest(part, found)}"
        if part in OF_REPORTS:  # spelled right
            elsewhere = f": {shown_by[part]}" if part in shown_by else ""
            message = f"this report holds no {part}{elsewhere}"
        messages.append(f"{message}; it has {has}")
    return messages


def chosen_parts(report: Report, parts: Sequence[str]) -> Report:
    """Return the report with only these parts; any other name stands for a single tensor, table or number."""
    if "all" in parts:
        return report
    names = {*parts}.difference(OF_REPORTS) & part_names(report)
    if any("step" in report.tensors[name].axes for name in names & report.tensors.keys()):
        names.add("step")
    tensors = {
        name: tensor
        for name, tensor in report.tensors.items()
        if name in names or _part_of_tensor(name, tensor) in parts
    }
    statistics = {
        name: statistic
        for name, statistic in report.statistics.items()
        if name in names or _part_of_statistic(statistic) in parts
    }
    return replace(
        report,
        picture_maps=report.picture_maps if "weights" in parts else None,
        tensors=tensors,
        result=read_result(report.kind, statistics, tensors),
    )


class Curve(NamedTuple):
    """One series of numbers over another, labelled if there are several curves."""

    label: str
    x: np.ndarray
    y: np.ndarray


class Curves(NamedTuple):
    """Curves of `y_name` that share their axes, from the tensor or table `name`.

    If `is_of_rows`, each row of a table is a curve over list indices.
    """

    title: str
    x_name: str
    curves: list[Curve]
    is_of_rows: bool
    name: str
    y_name: str


class Spreads(NamedTuple):
    """The mean and standard deviation of one set of numbers in several named states."""

    title: str
    names: list[str]
    means: np.ndarray
    deviations: np.ndarray


def report_curves(report: Report) -> Iterator[Curves]:
    """Return each tensor over points against the first such tensor, then the lists of numbers in tables."""
    points = {name: t.values for name, t in report.tensors.items() if t.axes == ("point",)}
    x_name = next(iter(points), "")
    for name in list(points)[1:]:
        if points[name].shape == points[x_name].shape:
            if not np.isfinite(points[name]).any():
                continue
            curve = Curve("", points[x_name], points[name])
            yield Curves(f"{name} over {x_name}", x_name, [curve], False, name, name)
    for name, table in report.statistics.items():
        if isinstance(table, Table) and table:
            yield from _of_rows(name, table)


ACROSS = ("budget", "step", "false_positive_rate")
"""The column of lists that is the x axis of a table's other lists, if the table has such a column."""


POSITIONS = frozenset({"keys", "top_keys"})
"""Lists of positions, which are rankings: neither they nor the lists beside them are curves."""


def _of_rows(name: str, table: Table) -> Iterator[Curves]:
    first = next(iter(table[0]))
    lists = [column for column, cell in table[0].items() if isinstance(cell, list)]
    x_name = next((name for name in ACROSS if name in lists), "place")
    for column in (column for column in lists if column != x_name and not POSITIONS & {*lists}):
        curves = []
        for row in table:
            y = np.array(row[column], dtype=np.float64)
            x = np.array(row[x_name], dtype=np.float64) if x_name in ACROSS else np.arange(len(y))
            curves.append(Curve(_row_name(first, row[first]), x, y))
        if all(np.isfinite(curve.y).all() for curve in curves):
            yield Curves(f"{name}: {column} by {first}", x_name, curves, True, name, column)


def _row_name(column: str, cell: object) -> str:
    """Return a number preceded by its axis, or just a name."""
    return f"{column} {cell:g}" if isinstance(cell, int | float) else plain_text(str(cell))


def block_mean(values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Return the mean of each block."""
    is_number = np.isfinite(values)
    totals = _reduced(np.add, np.where(is_number, values, 0), block)
    counts = _reduced(np.add, is_number.astype(np.int64), block)
    means: np.ndarray = np.divide(totals, counts, where=counts > 0, out=np.full(totals.shape, np.nan))
    return means


def block_maximum(values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """Return the maximum of each block."""
    return _reduced(np.fmax, np.where(np.isfinite(values), values, np.nan), block)


def _reduced(operation: np.ufunc, values: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    for axis, size in zip((-2, -1), block, strict=True):
        values = operation.reduceat(values, np.arange(0, values.shape[axis], size), axis=axis)
    return values


def head_statistic_grids(report: Report) -> Iterator[tuple[str, NamedTensor]]:
    """Yield each statistic of a report's heads by layer and head, with one grid per stack of the model."""
    heads = report.statistics.get("heads")
    if not isinstance(heads, Table):
        return
    for name, cell in heads[0].items() if heads else ():
        if isinstance(cell, float) or cell is None:
            for stack, grid in heads.grids(name).items():
                if not np.isnan(grid.values).all():
                    yield f"{name} {stack}".strip(), grid
