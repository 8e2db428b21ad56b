"""The JSON form of a report: its names and types, as pydantic checks them."""

from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from attncli.report import AXES, PLACES, NamedTensor, Numbers, Report, Shape, Step, Table, Terms
from attncli.saved.tensors import as_array, with_axes

LONGEST_NAME = 100
MOST_PLACES = 4096  # layers, or heads: a survey becomes a grid of them


def is_plain_name(name: str) -> bool:
    """Whether a name has a sensible length and no character that moves or hides anything."""
    return name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError("must be a plain name")
    return name


def _step_cell(value: Any) -> Any:
    if type(value) not in (str, int, float, NoneType):
        raise ValueError("must be a number, a text or null")
    return value


def _known_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    for axis in axes:
        if axis not in AXES:
            raise ValueError(f"unknown axis {axis!r:.40}: must be of {', '.join(AXES)}")
    if len(set(axes)) < len(axes) or not axes:
        raise ValueError(f"must name one axis or more, each once (got {', '.join(axes) or 'none'})")
    return axes


def _statistic(value: Any) -> Any:
    """A list is a table; an object with lists a group of tensors, whose axes are listed elsewhere."""
    if isinstance(value, list):
        return _table(value)
    if not isinstance(value, dict) or not value:
        raise ValueError("must be an object or a list, with something in it")
    if any(isinstance(item, list | np.ndarray) for item in value.values()):
        return value
    for name, item in value.items():
        if isinstance(item, dict | str):
            raise ValueError(f"{name} must be a number")
    return Numbers(value)


def _table(rows: list[Any]) -> Table:
    """Rows with the same names, whose cells are numbers, texts or lists of equally many numbers."""
    kinds: dict[str, Any] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not row or list(row) != list(rows[0]):
            raise ValueError(f"row {number} has other names than row 0, or none")
        for name, cell in row.items():
            kind = len(cell) if isinstance(cell, list) else str if isinstance(cell, str) else None
            items = cell if isinstance(cell, list) else [cell]
            is_plain = not any(isinstance(item, dict | list) for item in items)
            if not is_plain or kinds.setdefault(name, kind) != kind:
                raise ValueError(f"row {number}: {name} is of another kind than in row 0, or none of a cell")
            if name in PLACES and isinstance(cell, int) and not 0 <= cell < MOST_PLACES:
                raise ValueError(f"row {number}: {name} must be from 0 to {MOST_PLACES - 1} (got {cell})")
    if not rows:
        raise ValueError("is empty")
    return Table(rows)


T = TypeVar("T")
Listed = Annotated[tuple[T, ...], Strict(False)]
"""A tuple, which is a list in JSON; everything else is strict."""
Axes = Annotated[Listed[str], AfterValidator(_known_axes)]
Count = Annotated[int, Field(ge=0)]
StepCell = Annotated[Any, AfterValidator(_step_cell)]


class Saved(BaseModel):
    """An object with exactly these names, and values of exactly these types."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SavedTensor(Saved):
    """A tensor with its axes."""

    axes: Axes
    values: Any

    def restored(self) -> NamedTensor:
        """ValueError where the values are not a rectangular array of numbers."""
        return NamedTensor(self.axes, as_array(self.values, len(self.axes)))


class SavedShape(Saved):
    """A tensor that a step is about."""

    name: str
    axes: Listed[str]
    sizes: Listed[Count]
    strides: Listed[Count] | None

    def restored(self) -> Shape:
        """ValueError where there is not one size (and stride) per axis."""
        if {len(self.sizes), len(self.strides or self.sizes)} != {len(self.axes)}:
            raise ValueError(
                f"must have a size (and a stride, where there are any) for {len(self.axes)} axes"
            )
        return Shape(**dict(self))


class SavedTerms(Saved):
    """A table of a step."""

    title: str
    columns: Listed[str]
    rows: Listed[Listed[StepCell]]
    count: Count
    totals: Listed[Listed[StepCell]]

    def restored(self) -> Terms:
        """ValueError where a row does not have one cell per column."""
        if any(len(row) != len(self.columns) for row in (*self.rows, *self.totals)):
            raise ValueError(f"must have a cell for each of {len(self.columns)} columns in every row")
        return Terms(**dict(self))


class SavedStep(Saved):
    """A step of a computation."""

    title: str
    formula: str
    prose: str
    shapes: Listed[Annotated[SavedShape, AfterValidator(SavedShape.restored)]]
    values: dict[str, StepCell]
    tables: Listed[Annotated[SavedTerms, AfterValidator(SavedTerms.restored)]]
    question: str = ""

    def restored(self) -> Step:
        """The step as a report holds it."""
        return Step(**dict(self))


class SavedReport(Saved):
    """A whole report; the axes of the tensors among its statistics are listed separately."""

    schema_version: int
    experiment: Annotated[str, AfterValidator(_plain_name)]
    spec: dict[str, Any]
    environment: dict[str, str]
    tokens: Listed[str]
    context_tokens: Listed[str]
    token_spelling: Literal["byte-level", "metaspace"] | None = None
    first_query: Count = 0
    is_unfinished: bool = False
    tensors: dict[str, Annotated[SavedTensor, AfterValidator(SavedTensor.restored)]]
    statistics: dict[str, Annotated[Any, AfterValidator(_statistic)]]
    statistic_axes: dict[str, dict[str, Axes]]
    steps: Listed[Annotated[SavedStep, AfterValidator(SavedStep.restored)]] = ()
    notes: Listed[str]

    def restored(self) -> Report:
        """ValueError, with the place, for statistics and axes that do not match."""
        fields = dict(self) | {"statistics": with_axes(self.statistics, self.statistic_axes)}
        del fields["schema_version"], fields["statistic_axes"]
        return Report(**fields)
