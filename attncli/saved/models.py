"""The JSON form of a report: its names and types, as pydantic checks them."""

from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, model_validator

from attncli.report import AXES, NamedTensor, Numbers, Shape, Step, Table, Terms
from attncli.saved.boxes import as_array

LONGEST_NAME = 100


def is_plain_name(name: str) -> bool:
    """Whether a name is of a sensible length, with no character that moves or hides anything."""
    return name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _that(is_right: Callable[[Any], bool], message: str) -> AfterValidator:
    """Refuses a value that is not right."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


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
    if any(isinstance(item, list) for item in value.values()):
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
    if not rows:
        raise ValueError("is empty")
    return Table(rows)


# JSON has lists alone: a tuple is made of one, though all else is strict.
Texts = Annotated[tuple[str, ...], Strict(False)]
Axes = Annotated[Texts, AfterValidator(_known_axes)]
Count = Annotated[int, Field(ge=0)]
Counts = Annotated[tuple[Count, ...], Strict(False)]
IsCell = _that(lambda cell: type(cell) in (str, int, float, NoneType), "must be a number, a text or null")
Rows = Annotated[tuple[Annotated[tuple[Annotated[Any, IsCell], ...], Strict(False)], ...], Strict(False)]


class Saved(BaseModel):
    """An object with exactly these names, its values of exactly these types."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SavedTensor(Saved):
    """A tensor with its axes beside it."""

    axes: Axes
    values: Any

    @model_validator(mode="after")
    def _as_array(self) -> "SavedTensor":
        self.values = as_array(self.values, len(self.axes))
        return self

    def tensor(self) -> NamedTensor:
        """As a report holds it."""
        return NamedTensor(self.axes, self.values)


class SavedShape(Saved):
    """A tensor that a step is about."""

    name: str
    axes: Texts
    sizes: Counts
    strides: Counts | None

    @model_validator(mode="after")
    def _sizes_of_axes(self) -> "SavedShape":
        if {len(self.sizes), len(self.strides or self.sizes)} != {len(self.axes)}:
            raise ValueError(
                f"must have a size (and a stride, where there are any) for {len(self.axes)} axes"
            )
        return self


class SavedTerms(Saved):
    """A table of a step."""

    title: str
    columns: Texts
    rows: Rows
    count: Count
    totals: Rows

    @model_validator(mode="after")
    def _cells_of_columns(self) -> "SavedTerms":
        if any(len(row) != len(self.columns) for row in (*self.rows, *self.totals)):
            raise ValueError(f"must have a cell for each of {len(self.columns)} columns in every row")
        return self


class SavedStep(Saved):
    """A step of a computation."""

    title: str
    formula: str
    prose: str
    shapes: list[SavedShape]
    values: dict[str, Annotated[Any, IsCell]]
    tables: list[SavedTerms]

    def step(self) -> Step:
        """As a report holds it."""
        shapes = tuple(Shape(**dict(shape)) for shape in self.shapes)
        tables = tuple(Terms(**dict(table)) for table in self.tables)
        return Step(self.title, self.formula, self.prose, shapes, self.values, tables)


class SavedReport(Saved):
    """A whole report; of its statistics those that are tensors have their axes apart."""

    schema_version: int
    experiment: Annotated[str, _that(is_plain_name, "must be a plain name")]
    spec: dict[str, Any]
    environment: dict[str, str]
    tokens: Texts
    context_tokens: Texts
    tensors: dict[str, SavedTensor]
    statistics: dict[str, Annotated[Any, AfterValidator(_statistic)]]
    statistic_axes: dict[str, dict[str, Axes]]
    steps: list[SavedStep] = []
    notes: Texts
