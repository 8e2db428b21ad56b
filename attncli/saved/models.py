"""The JSON form of a report: its names and types, as pydantic checks them."""

from types import NoneType
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from attncli.report import AXES, PLACES, NamedTensor, Numbers, Report, Shape, Step, Table, Terms
from attncli.saved.boxes import as_array
from attncli.saved.sizes import with_axes

LONGEST_NAME = 100
MOST_PLACES = 4096  # Layers, or heads: a survey becomes a grid of them.


def is_plain_name(name: str) -> bool:
    """Whether a name is of a sensible length, with no character that moves or hides anything."""
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
    """Told by its shape: a table is a list; a group of tensors, whose axes stand elsewhere, holds lists."""
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
    """Rows with the same names, whose cells are numbers, texts or lists of so many numbers."""
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
"""A tuple, of which JSON makes a list; all else is strict."""
Axes = Annotated[Listed[str], AfterValidator(_known_axes)]
Count = Annotated[int, Field(ge=0)]
StepCell = Annotated[Any, AfterValidator(_step_cell)]


class Saved(BaseModel):
    """An object with exactly these names, its values of exactly these types."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SavedTensor(Saved):
    """A tensor with its axes beside it."""

    axes: Axes
    values: Any

    def found(self) -> NamedTensor:
        """As a report holds it; ValueError where the values are no full box of numbers."""
        return NamedTensor(self.axes, as_array(self.values, len(self.axes)))


class SavedShape(Saved):
    """A tensor that a step is about."""

    name: str
    axes: Listed[str]
    sizes: Listed[Count]
    strides: Listed[Count] | None

    def found(self) -> Shape:
        """As a report holds it; ValueError where it has not a size, or stride, for each axis."""
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

    def found(self) -> Terms:
        """As a report holds it; ValueError where a row has not a cell for each column."""
        if any(len(row) != len(self.columns) for row in (*self.rows, *self.totals)):
            raise ValueError(f"must have a cell for each of {len(self.columns)} columns in every row")
        return Terms(**dict(self))


class SavedStep(Saved):
    """A step of a computation."""

    title: str
    formula: str
    prose: str
    shapes: Listed[Annotated[SavedShape, AfterValidator(SavedShape.found)]]
    values: dict[str, StepCell]
    tables: Listed[Annotated[SavedTerms, AfterValidator(SavedTerms.found)]]
    question: str = ""

    def found(self) -> Step:
        """As a report holds it."""
        return Step(**dict(self))


class SavedReport(Saved):
    """A whole report; of its statistics those that are tensors have their axes apart."""

    schema_version: int
    experiment: Annotated[str, AfterValidator(_plain_name)]
    spec: dict[str, Any]
    environment: dict[str, str]
    tokens: Listed[str]
    context_tokens: Listed[str]
    token_spelling: Literal["byte-level", "metaspace"] | None = None
    first_query: Count = 0
    is_unfinished: bool = False
    tensors: dict[str, Annotated[SavedTensor, AfterValidator(SavedTensor.found)]]
    statistics: dict[str, Annotated[Any, AfterValidator(_statistic)]]
    statistic_axes: dict[str, dict[str, Axes]]
    steps: Listed[Annotated[SavedStep, AfterValidator(SavedStep.found)]] = ()
    notes: Listed[str]

    def found(self) -> Report:
        """As a report holds it all; ValueError, with the place, for statistics and axes that do not fit."""
        fields = dict(self)
        del fields["schema_version"], fields["statistic_axes"]
        fields["statistics"] = with_axes(self.statistics, self.statistic_axes)
        return Report(**fields)
