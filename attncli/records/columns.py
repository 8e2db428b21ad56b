"""Results with typed columns, which are declared by a class of rows.

Reports, tables, stores, conditions, units and data frames all use this declaration:

    class HeadLogit(Record):
        layer: int
        head: int
        contribution: float | None = column(unit="logit")
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType, UnionType
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Literal,
    Self,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

import numpy as np
import numpy.typing as npt

from attncli.errors import NoSuchName, UserError
from attncli.records.meanings import INTERVAL, Meaning, meaning_of_end, meaning_of_name, spaced
from attncli.records.tabled import SmallTable
from attncli.records.values import (
    Cell,
    CellArray,
    NamedTensor,
    NumberArray,
    Numbers,
    SortKey,
    Statistic,
    Table,
    Tensors,
    are_equal,
    statistic_for_text,
)

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]  # an extra

    from attncli.records.stored_columns import Leaf
    from attncli.records.values import RowSlice

T = TypeVar("T")
R = TypeVar("R", bound="Record")
FEW = 50
"""With fewer texts, Student's t covers the mean of a skewed statistic in fewer than 93 of 100 cases."""


def few_notes(count: int, kind: str = "text") -> list[str]:
    """Return the note about intervals of means over only a few texts, prompts or files."""
    return (
        [f"With fewer than {FEW} {kind}s, intervals of skewed statistics are too narrow."]
        if 1 < count < FEW
        else []
    )


OMITTED = re.compile(
    r", or None [^,;]*$|, which are None if [^,;]*$|,? (?:as in|see) `[A-Z]\w+`|; see `[A-Z]\w+`"
)
"""Parts of a docstring's sentence that people don't need: missing values, and names of classes."""
Cells = Sequence[object] | CellArray
"""A column or a part of it."""
CheckedCells = Sequence[Cell | list[Cell] | NumberArray] | CellArray
"""Cells that match the declared types."""
WIDER: Mapping[type, tuple[type, ...]] = {float: (int, float)}
"""Additional types of cells: JSON does not distinguish whole numbers."""


def _alternatives(annotation: object) -> tuple[object, ...]:
    """Return the types of a union, or the type itself if it is not a union."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _comparable(row: Mapping[str, object]) -> dict[str, object]:
    """Return the cells of a row with NaN replaced by None, even in arrays, so that `==` can compare them."""
    return {
        name: [None if number != number else number for number in cell.tolist()]
        if isinstance(cell, np.ndarray)
        else cell
        for name, cell in row.items()
    }


def _order(cell: str | float | None) -> tuple[int, str | float]:
    """Return the sort key of a cell: numbers come first, then strings, then None."""
    return (2, 0) if cell is None else (int(isinstance(cell, str)), cell)


def _are_numbers(cells: Cells) -> bool:
    """Return True if every cell is a number or None."""
    if isinstance(cells, np.ndarray) and cells.dtype != object:
        return cells.dtype.kind in "biuf"
    return all(isinstance(cell, int | float | None) for cell in cells)


class ColumnKind:
    """A column of a class of rows.

    `kinds` are the types of its cells, with None for a missing number. `unit` is the unit of its numbers,
    such as logit or nats. A store keeps its numbers unless `is_kept` is false, as for positions. If
    `is_needed` is false, reports of older versions may lack the column. `of` computes a cell from the row's
    other cells. If a mean over texts `has_interval`, the columns NAME_low and NAME_high hold its interval if
    there are several texts. `label` is its name for people, by default the name with blanks, and `about` is a
    sentence on its cells.
    """

    def __init__(
        self,
        name: str = "",
        unit: str = "",
        is_kept: bool = True,
        is_needed: bool = True,
        has_interval: bool = False,
        of: "Callable[[Record], object] | None" = None,
        label: str = "",
        about: str = "",
    ) -> None:
        self.name, self.label, self.about = name, label, about
        self.kinds: tuple[type, ...] = ()
        self.unit, self.is_kept, self.is_needed, self.of = unit, is_kept, is_needed and of is None, of
        self.has_interval = has_interval

    def named(self, name: str, annotation: object) -> Self:
        """Set the name, unless the column has one, and the types of its cells; return the column."""
        kinds = [get_origin(kind) or kind for kind in _alternatives(annotation)]
        self.name = self.name or name
        self.kinds = tuple(
            wide for kind in kinds if isinstance(kind, type) for wide in WIDER.get(kind, (kind,))
        )
        return self

    @property
    def is_number(self) -> bool:
        """True if its cells are numbers."""
        return not {int, float}.isdisjoint(self.kinds)

    @property
    def is_list(self) -> bool:
        """True if its cells are lists of numbers."""
        return list in self.kinds

    @property
    def is_in_stores(self) -> bool:
        """True if a store keeps its numbers or lists of numbers."""
        return self.is_kept and (self.is_number or self.is_list)

    @overload
    def __get__(self, row: None, _: type) -> Self: ...

    @overload
    def __get__(self, row: "Record", _: type) -> object: ...

    def __get__(self, row: "Record | None", _: type) -> object:
        return self if row is None else row.get(self.name)


def column(
    name: str = "",
    *,
    unit: str = "",
    label: str = "",
    about: str = "",
    is_kept: bool = True,
    is_needed: bool = True,
    has_interval: bool = False,
    of: Callable[[R], T] | None = None,
) -> T:
    """Declare a column, after its name and type; see `ColumnKind`.

    `name` is the cell's name if that cannot be an attribute, as is the case for `from`. The row's attribute
    is the cell.
    """
    compute = cast("Callable[[Record], object] | None", of)
    return cast(T, ColumnKind(name, unit, is_kept, is_needed, has_interval, compute, label, about))


class Record(Mapping[str, Cell | list[Cell] | NumberArray]):
    """A row of a table with declared columns: `row.loss` and `row["loss"]` are a cell, or None if missing."""

    columns: ClassVar[Mapping[str, ColumnKind]] = {}
    others: ClassVar[ColumnKind | None] = None
    """The type of columns named in the data, such as relations: `class Row(Record, others=float)`."""
    shared: ClassVar[Mapping[str, Meaning]] = {}
    """The meanings of columns that several classes of rows share, unless the column has its own sentence."""

    def __init_subclass__(
        cls,
        numbers: Iterable[str] = (),
        units: Mapping[str, str] | None = None,
        others: object = None,
        others_about: str = "",
        shared: Mapping[str, Meaning] | None = None,
    ) -> None:
        """Declare the columns; `numbers` names further optional columns of numbers, `units` their units."""
        if others is not None:
            cls.others = ColumnKind(about=others_about).named("others", others)
        cls.shared = {**cls.shared, **(shared or {})}
        declared_here: dict[str, ColumnKind] = {}
        for attribute, annotation in vars(cls).get("__annotations__", {}).items():
            declared = vars(cls).get(attribute)
            kind = declared if isinstance(declared, ColumnKind) else ColumnKind()
            kind.named(attribute, annotation)
            declared_here[kind.name] = kind
            setattr(cls, attribute, kind)
            if kind.has_interval:
                names = [f"{kind.name}{end}" for end in INTERVAL]
                declared_here |= {end: ColumnKind(is_needed=False).named(end, annotation) for end in names}
        for name in numbers:
            kind = ColumnKind(unit=(units or {}).get(name, ""), is_needed=False)
            declared_here[name] = kind.named(name, float | None)
            if not hasattr(cls, name):  # a plugin's statistic may have the same name as an attribute of rows
                setattr(cls, name, declared_here[name])
        cls.columns = {**cls.columns, **declared_here}

    def __init__(self, cells: Mapping[str, CheckedCells], place: int) -> None:
        self._cells, self._place = cells, place

    def __getitem__(self, name: str) -> Cell | list[Cell] | NumberArray:
        if name not in self._cells:
            raise NoSuchName("column", name, self._cells)
        cell = self._cells[name][self._place]
        if isinstance(cell, np.generic):
            cell = cell.item()
        return None if isinstance(cell, float) and cell != cell else cell

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def number(self, name: str) -> float | None:
        """Return a cell that is a number or None. Raises TypeError for any other cell."""
        cell = self[name]
        if cell is not None and not isinstance(cell, int | float):
            raise TypeError(f"{name} is not a number: {cell!r:.40}")
        return cell

    def numbers(self) -> Numbers:
        """Return the cells of a row of numbers. Raises TypeError if any cell is not a number."""
        return Numbers({name: self.number(name) for name in self})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and _comparable(self) == _comparable(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)})"

    @classmethod
    def declared(cls, name: str) -> ColumnKind | None:
        """Return the column with that name, or None if only another version declares the column."""
        return cls.columns.get(name, cls.others)

    @classmethod
    def about_rows(cls) -> str:
        """Return the first sentence of the docstring without its full stop and names of classes."""
        sentence = re.split(r"(?<=\S)\.(?: |$)", " ".join((cls.__doc__ or "").split()))[0]
        return OMITTED.sub("", sentence).replace("`", "")

    @classmethod
    def meaning(cls, name: str) -> Meaning:
        """Return the label, unit and sentence of a column, which may be one of another version's columns."""
        declared = cls.declared(name)
        unit = "" if declared is None else declared.unit
        for end, word in zip(INTERVAL, ("lower", "upper"), strict=True):
            mean = cls.columns.get(name.removesuffix(end))
            if mean is not None and mean.name != name:
                return meaning_of_end(cls.meaning(mean.name), word)
        if declared is not None and declared.about:
            return Meaning(declared.about, unit, declared.label or spaced(name))
        meaning = cls.shared[name] if name in cls.shared else meaning_of_name(name)
        return Meaning(meaning.about, unit or meaning.unit, meaning.label or spaced(name))

    @classmethod
    def meanings(cls) -> Iterator[tuple[str, Meaning]]:
        """Yield the name and the meaning of each declared column."""
        yield from ((name, cls.meaning(name)) for name in cls.columns)

    @classmethod
    def has_computed_columns(cls) -> bool:
        """Return True if a column is computed from a row's other cells."""
        return any(declared.of is not None for declared in cls.columns.values())

    @classmethod
    def table(cls, **cells: Cells) -> "Records[Self]":
        """Build rows from columns (lists or arrays). Raises TypeError if they do not match the class."""
        return Records(cls, cells)

    @classmethod
    def rows(cls, rows: Iterable[Mapping[str, object]]) -> "Records[Self]":
        """Build rows from mappings with equal names. Raises TypeError if they do not match the class."""
        listed = [*rows]
        return Records(cls, {name: [row[name] for row in listed] for name in (listed or [cls.columns])[0]})

    @classmethod
    def joined(cls, tables: Iterable["Records[Self]"]) -> "Records[Self]":
        """Concatenate tables, filling missing columns with None."""
        parts = [*tables]
        names = dict.fromkeys(name for part in parts for name in part.cells)
        joined: dict[str, Cells] = {}
        for name in names:
            columns = [part.cells.get(name, [None] * len(part)) for part in parts]
            arrays = [cells for cells in columns if isinstance(cells, np.ndarray)]
            if len(arrays) == len(columns):
                joined[name] = np.concatenate(arrays)
            else:
                joined[name] = [cell for cells in columns for cell in cells]
        return cls.table(**joined) if joined else cls.rows([])

    @classmethod
    def single(cls, **cells: object) -> Self:
        """Build a single row; optional cells may be missing."""
        rows = cls.rows([cells])
        return rows[0] if cells else cls({}, 0)


class Records(Table[R]):
    """A table whose columns are arrays or lists and whose rows are of the class `R`.

    Undeclared columns, which come from reports of other versions, are kept. Raises TypeError if columns are
    missing, have unequal lengths, or hold cells of another type.
    """

    def __init__(self, kind: type[R], cells: Mapping[str, Cells]) -> None:
        self.kind = kind
        columns = {name: column for name, column in cells.items() if column is not None}
        self._len = len(next(iter(columns.values()), ()))
        missing = [name for name, needed in kind.columns.items() if needed.is_needed and name not in columns]
        if missing:
            raise TypeError(f"{kind.__name__} needs a column {missing[0]}")
        self.cells: dict[str, CheckedCells] = {
            name: self._checked(name, column) for name, column in columns.items()
        }
        for name, computed in kind.columns.items():
            if computed.of is not None and name not in self.cells:
                self.cells[name] = self._checked(name, [computed.of(row) for row in self])

    def _checked(self, name: str, cells: Cells) -> CheckedCells:
        if len(cells) != self._len:
            raise TypeError(f"{self.kind.__name__}: {name} has {len(cells)} cells, others {self._len}")
        declared = self.kind.declared(name)
        if declared is None or isinstance(cells, np.ndarray):
            return cast(CheckedCells, cells)
        wrong = next((cell for cell in cells if not isinstance(cell, declared.kinds)), None)
        if wrong is not None or (None in cells and type(None) not in declared.kinds):
            raise TypeError(f"{self.kind.__name__}: {name} holds {wrong!r:.40}")
        return cast(CheckedCells, cells)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, place: SupportsIndex) -> R: ...

    @overload
    def __getitem__(self, place: "RowSlice") -> "Records[R]": ...

    def __getitem__(self, place: "SupportsIndex | RowSlice") -> "R | Records[R]":
        if isinstance(place, slice):
            return Records(self.kind, {name: cells[place] for name, cells in self.cells.items()})
        return self.kind(self.cells, range(self._len)[place])

    def __iter__(self) -> Iterator[R]:
        return (self.kind(self.cells, place) for place in range(self._len))

    def __repr__(self) -> str:
        return SmallTable.of(self.kind.__name__, self).text()

    def _repr_html_(self) -> str:
        return SmallTable.of(self.kind.__name__, self).html(self.kind.meaning)

    def sorted(self, key: str | Callable[[R], SortKey]) -> "Records[R]":
        """Return the rows in ascending order of a column, with missing cells last, or of a function's value.

        Raises UserError for a column of lists, which cannot be ordered.
        """
        if not isinstance(key, str):
            return self.taken(sorted(range(self._len), key=lambda place: key(self[place])))
        cells = self.column(key)
        if cells.ndim > 1 or any(isinstance(cell, list) for cell in cells.flat):
            raise UserError(f"sorted: {key} holds lists: use a function of a row, such as len(row[{key!r}])")
        if cells.dtype != object:
            return self.taken(cells.argsort(kind="stable").tolist())
        texts = cells.tolist()
        return self.taken(sorted(range(self._len), key=lambda place: _order(texts[place])))

    def where(self, condition: Callable[[R], bool]) -> "Records[R]":
        """Return the rows that satisfy a condition."""
        return self.taken([place for place in range(self._len) if condition(self[place])])

    def taken(self, places: Sequence[int]) -> "Records[R]":
        """Return the rows at the given indices, in the same order."""
        return Records(
            self.kind,
            {
                name: cells[np.array(places, dtype=int)]
                if isinstance(cells, np.ndarray)
                else [cells[place] for place in places]
                for name, cells in self.cells.items()
            },
        )

    def column(self, name: str) -> npt.NDArray[np.float64] | npt.NDArray[np.object_]:
        """Return a column as an array: numbers as float64 with NaN if missing, strings and lists as objects.

        If every cell is an array of the same length, the result is two-dimensional.
        """
        if name not in self.cells:
            raise NoSuchName("column", name, self.cells)
        declared, cells = self.kind.declared(name), self.cells[name]
        if isinstance(cells, np.ndarray) and cells.ndim > 1:
            return cells.astype(np.float64, copy=False)
        if _are_numbers(cells) if declared is None else declared.is_number:
            return np.asarray(cells, dtype=np.float64)
        return np.fromiter(cells, dtype=object, count=self._len)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column of numbers, with NaN for missing numbers. Raises ValueError for strings."""
        return self.column(name).astype(np.float64, copy=False)

    def grid(self, name: str, *axes: str) -> npt.NDArray[np.float64]:
        """Return a column of numbers indexed by columns of whole numbers, such as the layer and the head.

        Missing rows become NaN; rows without an index are left out, since an MLP has no head, for example.
        Raises UserError for columns of other values and if several rows have the same indices, as an
        encoder's and a decoder's rows do.
        """
        axes = axes or ("layer", "head")
        columns = [self.column(each) for each in (name, *axes)]
        for each, cells in zip((name, *axes), columns, strict=True):
            if cells.ndim > 1 or (cells.dtype == object and self._len):
                raise UserError(f"grid: {each} does not hold one number per row")
        numbers, *placed = [cells.astype(np.float64) for cells in columns]
        is_placed = ~np.isnan(placed).any(axis=0)
        for axis, cells in zip(axes, placed, strict=True):
            if (cells[is_placed] % 1 != 0).any() or (cells[is_placed] < 0).any():
                raise UserError(f"grid: {axis} must hold whole numbers, 0 or larger")
        places = np.array([cells[is_placed] for cells in placed], dtype=int)
        if np.unique(places, axis=1).shape != places.shape:
            several = f"grid: several rows have the same {' and '.join(axes)}"
            raise UserError(f"{several}: name further axes, or choose rows with where()")
        grid = np.full(places.max(axis=1, initial=-1) + 1, np.nan)
        grid[tuple(places)] = numbers[is_placed]
        return grid

    def stored_columns(self) -> list[str]:
        """Return the columns whose numbers a store keeps."""
        declared = {name: self.kind.declared(name) for name in self.cells}
        return [name for name, column in declared.items() if column is not None and column.is_in_stores]

    def to_pandas(self) -> "DataFrame":
        """Return a data frame of these columns. Raises UserError if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas: needs: pip install pandas") from None
        return pandas.DataFrame({name: [row[name] for row in self] for name in self.cells})


@dataclass(frozen=True)
class StatisticGroup:
    """The place and form of a result's fields in a report.

    A table is a list of rows of the class `kind`. With `axes`, its columns are tensors: one axis for the
    rows, and a second for arrays in the cells. A single row is an object of numbers, and so are number
    fields. Without a `kind`, the group consists of tensors whose axes depend on the settings. A table that
    `may_be_empty` is empty if it is missing from the report. If several texts run together, a single row
    becomes a table with one row per text, whose columns are tensors along `batch`. With `is_bare_alone`, a
    table of one row is an object of its numbers.
    """

    name: str
    kind: type[Record] | None
    fields: tuple[str, ...]
    axes: tuple[str, ...] = ()
    is_kept: bool = True
    is_needed: bool = True
    may_be_empty: bool = False
    is_single: bool = False
    is_numbers: bool = False
    is_bare_alone: bool = False
    meaning: Meaning = field(default_factory=Meaning)
    """Its name for people, and a sentence on its rows."""

    @property
    def is_table(self) -> bool:
        """True if a report holds the field as a list of rows."""
        return not (self.axes or self.is_single)

    def statistic(self, result: "Result") -> Statistic | None:
        """Return the form of the field in a report, or None for a missing table."""
        if self.is_numbers:
            return Numbers({name: getattr(result, name) for name in self.fields})
        value: object = getattr(result, self.fields[0])
        axes = ("batch",) if self.is_single else self.axes
        if isinstance(value, Records) and axes:
            tensors = {name: NamedTensor(axes, np.asarray(cells)) for name, cells in value.cells.items()}
            return Tensors(tensors)
        if isinstance(value, Records) and self.is_bare_alone and len(value) == 1:
            value = value[0]
        if isinstance(value, Record):
            return value.numbers()
        # Reports leave out empty tables.
        return value if isinstance(value, Tensors | Table) and (value or self.is_needed) else None

    def field_for_text(self, value: object, place: int) -> object:
        """Return one text's part of a field, from several texts that ran together."""
        if isinstance(value, Records) and self.is_single:
            return value[place]
        return statistic_for_text(value, place) if isinstance(value, Tensors) else value

    def read(self, statistic: Statistic) -> dict[str, object]:
        """Return the fields for the contents of a report. Raises TypeError if their form is unexpected."""
        (first, *_) = self.fields
        if self.kind is None:
            if isinstance(statistic, Tensors):
                return {first: statistic}
            raise TypeError(f"{self.name} has an unexpected form")
        match statistic:
            case Tensors() if self.axes:
                if any(tensor.axes != self.axes for tensor in statistic.values()):
                    raise TypeError(f"{self.name} must have the axes {', '.join(self.axes)}")
                arrays = {name: tensor.values for name, tensor in statistic.items()}
                return {first: self.kind.table(**arrays)}
            case Numbers() if self.is_single:
                numbers = self.kind.single(**statistic)
                return {name: numbers[name] for name in self.fields} if self.is_numbers else {first: numbers}
            case Numbers() if self.is_bare_alone:
                return {first: self.kind.rows([statistic])}
            case Records() if self.is_table and statistic.kind is self.kind:
                return {first: statistic}
            case Table() if self.is_table:
                return {first: self.kind.rows(statistic)}
        raise TypeError(f"{self.name} has an unexpected form")


def group(
    name: str = "",
    *,
    label: str = "",
    about: str = "",
    axes: tuple[str, ...] = (),
    is_kept: bool = True,
    is_needed: bool = True,
    may_be_empty: bool = False,
    is_bare_alone: bool = False,
) -> T:  # type: ignore[type-var]  # the field's annotation says which type
    """Declare a field of a result that is one of a report's statistics; see `StatisticGroup`.

    By default, the statistic has the field's name. Fields that may be empty or are not needed are optional.
    `label` is its name for people, by default the name with blanks, and `about` is a sentence on it.
    """
    meaning = Meaning(about, label=label)
    metadata = {"group": (name, axes, is_kept, is_needed, may_be_empty, is_bare_alone, meaning)}
    must_be_given = is_needed and not may_be_empty
    return cast(T, field(metadata=metadata) if must_be_given else field(default=None, metadata=metadata))


@overload
def tensor(*, num_axes: int) -> NamedTensor | None: ...


@overload
def tensor(*, num_axes: int, is_needed: Literal[True]) -> NamedTensor: ...


def tensor(*, num_axes: int, is_needed: bool = False) -> NamedTensor | None:
    """Declare a field that is one of a report's tensors, with at least `num_axes` axes.

    The field is filled in when a result is read from a report.
    """
    metadata = {"tensor": (num_axes, is_needed)}
    declared = field(metadata=metadata) if is_needed else field(default=None, metadata=metadata)
    return cast(NamedTensor | None, declared)


def number(name: str, *, unit: str = "", label: str = "", about: str = "") -> T:  # type: ignore[type-var]  # see group
    """Declare a single number in the group with that name; see `column`."""
    return cast(T, field(metadata={"number": (name, ColumnKind(unit=unit, label=label, about=about))}))


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The result of a question: tables and single numbers; its other fields are not part of a report.

    `undeclared` holds statistics, by name, of a report from another version.
    """

    undeclared: Mapping[str, Statistic] = field(default_factory=dict)
    table_titles: ClassVar[Mapping[str, str]] = {}
    """Titles of its tables, by name, if they differ from the name."""
    summarises_runs: ClassVar[bool] = False
    """True if it summarises stored runs: tokens are values of settings, tensors show its rows of heads."""
    marks_note: ClassVar[str] = ""
    """The sentence that explains on the page what the marks in its maps mean."""
    title: ClassVar[str] = ""
    """The title of its report, if the settings have none."""
    compares: ClassVar[bool] = False
    """True if its title names what the report compares."""
    covers_all_heads: ClassVar[bool] = False
    """True if it covers all heads, even if the settings name one."""
    explains_figure: ClassVar[bool] = False
    """True if a figure explains below its title how to read it."""
    named_groups: ClassVar[Collection[str]] = ()
    """The groups whose numbers `named_numbers` yields, because a store names them in another way."""

    def __post_init__(self) -> None:
        for place in self.groups():
            (first, *_) = place.fields
            if place.may_be_empty and place.kind is not None and getattr(self, first) is None:
                object.__setattr__(self, first, place.kind.rows([]))

    def __init_subclass__(cls) -> None:
        cls.__eq__ = Result.__eq__  # type: ignore[method-assign]  # else dataclass compares arrays as truths

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(
            are_equal(getattr(self, part.name), getattr(other, part.name)) for part in fields(self)
        )

    def about_example(self) -> str:
        """Return the example that its maps were made from, or an empty string."""
        return ""

    def query_words(self) -> list[str]:
        """Return the words that the model wrote at the queries of its maps, or no words if it wrote none."""
        return []

    def marks(self, name: str) -> list[tuple[int, int, bool]]:
        """Return (query, key, found) for each marked cell of the map with that name."""
        return []

    def named_numbers(self) -> "Iterator[Leaf]":
        """Yield the values of `named_groups` with their columns in a store."""
        return iter(())

    @classmethod
    @cache
    def groups(cls) -> tuple[StatisticGroup, ...]:
        """Return the fields that are among a report's statistics, in order."""
        groups: dict[str, StatisticGroup] = {}
        numbers: dict[str, dict[str, ColumnKind]] = {}
        for part in fields(cls):
            annotation = next(kind for kind in _alternatives(part.type) if kind is not type(None))
            if "group" in part.metadata:
                name, axes, *flags = part.metadata["group"]
                is_kept, is_needed, may_be_empty, is_bare_alone, meaning = flags
                (kind,) = get_args(annotation) or (annotation,)
                name = name or part.name
                groups[name] = StatisticGroup(
                    name,
                    None if kind is Tensors else kind,
                    (part.name,),
                    axes,
                    is_kept,
                    is_needed,
                    may_be_empty,
                    is_single=get_origin(annotation) is None,
                    is_bare_alone=is_bare_alone,
                    meaning=Meaning(
                        meaning.about or ("" if kind is Tensors else kind.about_rows()),
                        label=meaning.label or spaced(name),
                    ),
                )
            elif "number" in part.metadata:
                name, declared = part.metadata["number"]
                numbers.setdefault(name, {})[part.name] = copy(declared).named(part.name, part.type)
                kind = type("SingleNumbers", (Record,), {"columns": numbers[name]})
                groups[name] = StatisticGroup(
                    name,
                    kind,
                    (*numbers[name],),
                    is_single=True,
                    is_numbers=True,
                    meaning=Meaning(label=spaced(name)),
                )
        return (*groups.values(),)

    @classmethod
    def tensors(cls) -> dict[str, tuple[int, bool]]:
        """Return the tensor fields of a report with their minimum number of axes, and True if required."""
        return {part.name: part.metadata["tensor"] for part in fields(cls) if "tensor" in part.metadata}

    def statistics(self) -> dict[str, Statistic]:
        """Return its statistics in the form of a report, without empty tables."""
        statistics = {place.name: place.statistic(self) for place in self.groups()}
        return {name: statistic for name, statistic in statistics.items() if statistic} | {**self.undeclared}

    def in_report(self, tensors: Mapping[str, NamedTensor]) -> "Result":
        """Return the result in the form that a report with these tensors holds.

        If a required tensor is missing, only the statistics remain.
        """
        if any(is_needed and name not in tensors for name, (_, is_needed) in self.tensors().items()):
            return UntypedResult(undeclared=self.statistics())
        values: dict[str, object] = {name: tensors.get(name) for name in self.tensors()}
        for place in self.groups():
            group_values = {name: getattr(self, name) for name in place.fields}
            values |= group_values if place.is_needed or any(group_values.values()) else {}
        return type(self)(**values, undeclared=self.undeclared)

    def for_text(self, place: int) -> Self:
        """Return the result for one of several texts that ran together, whose numbers lie along `batch`."""
        values = {
            name: part.field_for_text(getattr(self, name), place)
            for part in self.groups()
            for name in part.fields
        }
        undeclared = {
            name: statistic_for_text(statistic, place) for name, statistic in self.undeclared.items()
        }
        return replace(self, **values, undeclared=undeclared)

    @classmethod
    def read(
        cls, statistics: Mapping[str, Statistic], tensors: Mapping[str, NamedTensor] = MappingProxyType({})
    ) -> Self:
        """Return the result with these statistics. Raises TypeError if one is missing or malformed."""
        declared = {place.name for place in cls.groups()}
        undeclared = {name: statistic for name, statistic in statistics.items() if name not in declared}
        values: dict[str, object] = {}
        for name, (num_axes, is_needed) in cls.tensors().items():
            tensor = tensors.get(name)
            if tensor is None and is_needed:
                raise TypeError(f"{cls.__name__} needs {name}")
            if tensor is not None and (tensor.values.ndim < num_axes or not tensor.values.size):
                raise TypeError(f"{name} must have at least {num_axes} axes and not be empty")
            values[name] = tensor
        for place in cls.groups():
            if place.name in statistics:
                values |= place.read(statistics[place.name])
            elif place.is_needed and not place.may_be_empty:
                raise TypeError(f"{cls.__name__} needs {place.name}")
        return cls(**values, undeclared=undeclared)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the result's parts in a report."""
        return (*(place.name for place in cls.groups()), *cls.tensors())

    def __repr__(self) -> str:
        return self._first_rows().text()

    def _repr_html_(self) -> str:
        return self._first_rows().html()

    def _first_rows(self) -> SmallTable:
        """Return the first table that has rows, or else an empty table or the first single numbers."""
        values = [(name, getattr(self, name)) for place in self.groups() for name in place.fields]
        tables: list[tuple[str, Sequence[Record]]] = [
            *((name, value) for name, value in values if isinstance(value, Records)),
            *((name, [value]) for name, value in values if isinstance(value, Record)),
        ]
        if not tables:
            return SmallTable.of(type(self).__name__, [])
        name, rows = next((table for table in tables if table[1]), tables[0])
        return SmallTable.of(type(self).__name__, rows, f".{name}")


@dataclass(frozen=True, kw_only=True, repr=False)
class UntypedResult(Result):
    """Statistics without declared columns, all of which are `undeclared`.

    They come from a plugin's experiment without a result class or from another tool, or they were edited.
    `kind` is the kind's name in the saved report.
    """

    kind: str = ""

    def in_report(self, tensors: Mapping[str, NamedTensor]) -> Result:
        """Return the whole result, unchanged."""
        return self
