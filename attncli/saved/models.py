"""The JSON form of a report: its names and types, as pydantic checks them."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Strict,
    Tag,
    model_validator,
)

from attncli.report import AXES, Cell, NamedTensor, Shape, Step, Table, Terms
from attncli.saved.boxes import as_array

LONGEST_NAME = 100
KINDS_OF_STATISTICS = ("numbers", "tensors", "table")


def is_plain_name(name: str) -> bool:
    """Whether a name is of a sensible length, with no character that moves or hides anything."""
    return name.isprintable() and 0 < len(name) <= LONGEST_NAME


def _plain_name(name: str) -> str:
    if not is_plain_name(name):
        raise ValueError("must be a plain name")
    return name


def _known_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    for axis in axes:
        if axis not in AXES:
            raise ValueError(f"unknown axis {axis!r:.40}: must be of {', '.join(AXES)}")
    if len(set(axes)) < len(axes) or not axes:
        raise ValueError(f"must name one axis or more, each once (got {', '.join(axes) or 'none'})")
    return axes


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        raise ValueError("must be a number, a text or null")
    return value


def _cell_of_step(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, a text or null")
    return _cell(value)


def _number(value: Any) -> Any:
    if isinstance(value, dict | list | str):
        raise ValueError("must be a number or null")
    return value


def _cell_of_table(value: Any) -> Any:
    return [_cell(item) for item in value] if isinstance(value, list) else _cell(value)


def _table(rows: list[dict[str, Any]]) -> Table:
    """Rows with the same names, whose cells are numbers, texts or lists of so many numbers."""
    kinds: dict[str, Any] = {}
    for number, row in enumerate(rows):
        if list(row) != list(rows[0]):
            raise ValueError(f"row {number} has other names than row 0")
        for name, cell in row.items():
            kind = len(cell) if isinstance(cell, list) else isinstance(cell, str)
            if (type(kind), kind) != kinds.setdefault(name, (type(kind), kind)):
                raise ValueError(f"row {number}: {name} is of another kind than in row 0")
    return Table(rows)


def kind_of_statistic(value: Any) -> str:
    """Which of the kinds of statistics a value looks like: it is told by its shape."""
    if isinstance(value, list):
        return "table"
    has_lists = isinstance(value, dict) and any(isinstance(item, list) for item in value.values())
    return "tensors" if has_lists else "numbers"


# JSON has lists alone: a tuple is made of one, though all else is strict.
Texts = Annotated[tuple[str, ...], Strict(False)]
Axes = Annotated[Texts, AfterValidator(_known_axes)]
Count = Annotated[int, Field(ge=0)]
Counts = Annotated[tuple[Count, ...], Strict(False)]
StepCell = Annotated[Any, AfterValidator(_cell_of_step)]
Rows = Annotated[tuple[Annotated[tuple[StepCell, ...], Strict(False)], ...], Strict(False)]
Row = Annotated[dict[str, Annotated[Any, AfterValidator(_cell_of_table)]], Field(min_length=1)]
SavedStatistic = Annotated[
    Annotated[dict[str, Annotated[Any, AfterValidator(_number)]], Field(min_length=1), Tag("numbers")]
    | Annotated[dict[str, Any], Tag("tensors")]
    | Annotated[list[Row], Field(min_length=1), AfterValidator(_table), Tag("table")],
    Discriminator(kind_of_statistic),
]


class Saved(BaseModel):
    """An object with exactly these names, its values of exactly these types."""

    model_config = ConfigDict(strict=True, extra="forbid")


class SavedTensor(Saved):
    """A tensor with its axes beside it."""

    axes: Axes
    values: Any

    @model_validator(mode="after")
    def _box(self) -> "SavedTensor":
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
    values: dict[str, StepCell]
    tables: list[SavedTerms]

    def step(self) -> Step:
        """As a report holds it."""
        values: dict[str, Cell] = self.values
        shapes = tuple(Shape(**dict(shape)) for shape in self.shapes)
        tables = tuple(Terms(**dict(table)) for table in self.tables)
        return Step(self.title, self.formula, self.prose, shapes, values, tables)


class SavedReport(Saved):
    """A whole report."""

    schema_version: int
    experiment: Annotated[str, AfterValidator(_plain_name)]
    spec: dict[str, Any]
    environment: dict[str, str]
    tokens: Texts
    context_tokens: Texts
    tensors: dict[str, SavedTensor]
    statistics: dict[str, SavedStatistic]
    statistic_axes: dict[str, dict[str, Axes]]
    steps: list[SavedStep] = []
    notes: Texts
