"""Results with typed columns: a class of rows says once what its columns are.

What a report, a table, a store, a condition, a unit or a data frame needs to know of a column follows from
its declaration in the class, and stands nowhere else:

    class HeadLogit(Record):
        layer: int
        head: int
        contribution: float | None = column(unit="logit")
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    of_text,
)

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]  # an extra

    from attncli.records.values import RowSlice

T = TypeVar("T")
R = TypeVar("R", bound="Record")
INTERVAL = ("_low", "_high")
"""The lower and upper end of the 95 % interval of a mean."""
FEW = 50
"""Below this many texts Student's t covers means of skewed numbers in under 93 of 100 cases."""


def few_notes(count: int, kind: str = "text") -> list[str]:
    """The note beside intervals of means over only a few texts, prompts or files."""
    return [f"Under {FEW} {kind}s: intervals of skewed statistics are too narrow."] if 1 < count < FEW else []


Cells = Sequence[object] | CellArray
"""A column, or a part of it."""
CheckedCells = Sequence[Cell | list[Cell] | NumberArray] | CellArray
"""The cells of a column that are of its kinds."""
WIDER: Mapping[type, tuple[type, ...]] = {float: (int, float)}
"""What else a cell may be: JSON has whole numbers among others."""


def _alternatives(annotation: object) -> tuple[object, ...]:
    """The types of a union, or the only one."""
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _comparable(row: Mapping[str, object]) -> dict[str, object]:
    """The cells of a row, None for no number in an array too, so that `==` compares its numbers."""
    return {
        name: [None if number != number else number for number in cell.tolist()]
        if isinstance(cell, np.ndarray)
        else cell
        for name, cell in row.items()
    }


def _order(cell: str | float | None) -> tuple[int, str | float]:
    """What cells are sorted by: numbers, texts, None."""
    return (2, 0) if cell is None else (int(isinstance(cell, str)), cell)


def _are_numbers(cells: Cells) -> bool:
    """Whether each cell is a number or None."""
    if isinstance(cells, np.ndarray) and cells.dtype != object:
        return cells.dtype.kind in "biuf"
    return all(isinstance(cell, int | float | None) for cell in cells)


class ColumnKind:
    """A column of a class of rows.

    `kinds` are the types that its cells may have, None for no number. `unit` is what its numbers are, as
    logit or nats. A store keeps its numbers unless `is_kept` is false, as those of positions. A report of an
    older attn may lack it where `is_needed` is false. With `of` it is computed from the other cells of a row.
    A mean over texts `has_interval`: the columns NAME_low and NAME_high beside it, where there are several.
    """

    def __init__(
        self,
        name: str = "",
        unit: str = "",
        is_kept: bool = True,
        is_needed: bool = True,
        has_interval: bool = False,
        of: "Callable[[Record], object] | None" = None,
    ) -> None:
        self.name = name
        self.kinds: tuple[type, ...] = ()
        self.unit, self.is_kept, self.is_needed, self.of = unit, is_kept, is_needed and of is None, of
        self.has_interval = has_interval

    def named(self, name: str, annotation: object) -> Self:
        """The column with its name, unless it has another, and what its cells are."""
        kinds = [get_origin(kind) or kind for kind in _alternatives(annotation)]
        self.name = self.name or name
        self.kinds = tuple(
            wide for kind in kinds if isinstance(kind, type) for wide in WIDER.get(kind, (kind,))
        )
        return self

    @property
    def is_number(self) -> bool:
        """Whether its cells are numbers."""
        return not {int, float}.isdisjoint(self.kinds)

    @property
    def is_list(self) -> bool:
        """Whether its cells are lists of numbers."""
        return list in self.kinds

    @property
    def is_in_stores(self) -> bool:
        """Whether a store keeps its numbers, or its lists of numbers."""
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
    is_kept: bool = True,
    is_needed: bool = True,
    has_interval: bool = False,
    of: Callable[[R], T] | None = None,
) -> T:
    """The declaration of a column, behind its name and type; see `ColumnKind`.

    `name` is that of the cell where no attribute can have it, as `from`. A row's attribute is the cell.
    """
    of_row = cast("Callable[[Record], object] | None", of)
    return cast(T, ColumnKind(name, unit, is_kept, is_needed, has_interval, of_row))


class Record(Mapping[str, Cell | list[Cell] | NumberArray]):
    """A row of a table with columns: `row.loss` and `row["loss"]` are a cell, None is no number."""

    columns: ClassVar[Mapping[str, ColumnKind]] = {}
    others: ClassVar[ColumnKind | None] = None
    """The kind of columns that the data name, as relations are: `class Row(Record, others=float)`."""

    def __init_subclass__(
        cls, numbers: Iterable[str] = (), units: Mapping[str, str] | None = None, others: object = None
    ) -> None:
        """`numbers` are the names of further columns of numbers, which a table lists; a row may lack them.

        `units` are those of some of them.
        """
        if others is not None:
            cls.others = ColumnKind().named("others", others)
        declared_here: dict[str, ColumnKind] = {}
        for attribute, annotation in vars(cls).get("__annotations__", {}).items():
            declared = vars(cls).get(attribute)
            kind = declared if isinstance(declared, ColumnKind) else ColumnKind()
            named = kind.named(attribute, annotation)
            declared_here[named.name] = named
            setattr(cls, attribute, named)
            if named.has_interval:
                names = [f"{named.name}{end}" for end in INTERVAL]
                declared_here |= {end: ColumnKind(is_needed=False).named(end, annotation) for end in names}
        for name in numbers:
            kind = ColumnKind(unit=(units or {}).get(name, ""), is_needed=False)
            declared_here[name] = kind.named(name, float | None)
            if not hasattr(cls, name):  # a statistic of another package may be called as what rows have
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
        """A cell that is a number, or None; TypeError for another one."""
        cell = self[name]
        if cell is not None and not isinstance(cell, int | float):
            raise TypeError(f"{name} is no number: {cell!r:.40}")
        return cell

    def numbers(self) -> Numbers:
        """The cells of a row of numbers alone; TypeError for another one."""
        return Numbers({name: self.number(name) for name in self})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and _comparable(self) == _comparable(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)})"

    @classmethod
    def declared(cls, name: str) -> ColumnKind | None:
        """The column of that name; None for one of another attn."""
        return cls.columns.get(name, cls.others)

    @classmethod
    def has_computed_columns(cls) -> bool:
        """Whether a column is computed from the other cells of a row."""
        return any(declared.of is not None for declared in cls.columns.values())

    @classmethod
    def table(cls, **cells: Cells) -> "Records[Self]":
        """Rows from their columns, each a list or an array; TypeError for what the class does not declare."""
        return Records(cls, cells)

    @classmethod
    def rows(cls, rows: Iterable[Mapping[str, object]]) -> "Records[Self]":
        """Rows from mappings with the same names; TypeError for what the class does not declare."""
        listed = [*rows]
        return Records(cls, {name: [row[name] for row in listed] for name in (listed or [cls.columns])[0]})

    @classmethod
    def joined(cls, tables: Iterable["Records[Self]"]) -> "Records[Self]":
        """The rows of several tables, one after the other; None where one lacks a column of another."""
        parts = [*tables]
        names = dict.fromkeys(name for part in parts for name in part.cells)
        cells: dict[str, Cells] = {}
        for name in names:
            of_parts = [part.cells.get(name, [None] * len(part)) for part in parts]
            arrays = [kept for kept in of_parts if isinstance(kept, np.ndarray)]
            if len(arrays) == len(of_parts):
                cells[name] = np.concatenate(arrays)
            else:
                cells[name] = [cell for kept in of_parts for cell in kept]
        return cls.table(**cells) if cells else cls.rows([])

    @classmethod
    def single(cls, **cells: object) -> Self:
        """A single row, of which all cells may be missing where none is needed."""
        rows = cls.rows([cells])
        return rows[0] if cells else cls({}, 0)


class Records(Table[R]):
    """A table: its columns are arrays or lists, its rows are looked at one by one, each an `R`.

    A column more than declared, of another attn's report, is kept. TypeError for columns that are not there,
    of unequal lengths, or with cells of another kind.
    """

    def __init__(self, kind: type[R], cells: Mapping[str, Cells]) -> None:
        self.kind = kind
        given = {name: kept for name, kept in cells.items() if kept is not None}
        self._len = len(next(iter(given.values()), ()))
        missing = [name for name, needed in kind.columns.items() if needed.is_needed and name not in given]
        if missing:
            raise TypeError(f"{kind.__name__} needs a column {missing[0]}")
        self.cells: dict[str, CheckedCells] = {
            name: self._checked(name, kept) for name, kept in given.items()
        }
        for name, computed in kind.columns.items():
            if computed.of is not None and name not in self.cells:
                self.cells[name] = self._checked(name, [computed.of(row) for row in self])

    def _checked(self, name: str, kept: Cells) -> CheckedCells:
        if len(kept) != self._len:
            raise TypeError(f"{self.kind.__name__}: {name} has {len(kept)} cells, others {self._len}")
        declared = self.kind.declared(name)
        if declared is None or isinstance(kept, np.ndarray):
            return cast(CheckedCells, kept)
        wrong = next((cell for cell in kept if not isinstance(cell, declared.kinds)), None)
        if wrong is not None or (None in kept and type(None) not in declared.kinds):
            raise TypeError(f"{self.kind.__name__}: {name} holds {wrong!r:.40}")
        return cast(CheckedCells, kept)

    def __len__(self) -> int:
        return self._len

    @overload
    def __getitem__(self, place: SupportsIndex) -> R: ...

    @overload
    def __getitem__(self, place: "RowSlice") -> "Records[R]": ...

    def __getitem__(self, place: "SupportsIndex | RowSlice") -> "R | Records[R]":
        if isinstance(place, slice):
            return Records(self.kind, {name: kept[place] for name, kept in self.cells.items()})
        return self.kind(self.cells, range(self._len)[place])

    def __iter__(self) -> Iterator[R]:
        return (self.kind(self.cells, place) for place in range(self._len))

    def __repr__(self) -> str:
        return SmallTable.of(self.kind.__name__, self).text()

    def _repr_html_(self) -> str:
        return SmallTable.of(self.kind.__name__, self).html()

    def sorted(self, key: str | Callable[[R], SortKey]) -> "Records[R]":
        """The rows in rising order of a column, those without a cell last, or of what a function gives.

        UserError for a column of lists, which have no order.
        """
        if not isinstance(key, str):
            return self.taken(sorted(range(self._len), key=lambda place: key(self[place])))
        cells = self.column(key)
        if cells.ndim > 1 or any(isinstance(cell, list) for cell in cells.flat):
            raise UserError(f"sorted: {key} holds lists: give a function of a row, such as len(row[{key!r}])")
        if cells.dtype != object:
            return self.taken(cells.argsort(kind="stable").tolist())
        texts = cells.tolist()
        return self.taken(sorted(range(self._len), key=lambda place: _order(texts[place])))

    def where(self, condition: Callable[[R], bool]) -> "Records[R]":
        """The rows that meet a condition."""
        return self.taken([place for place in range(self._len) if condition(self[place])])

    def taken(self, places: Sequence[int]) -> "Records[R]":
        """The rows at these places, in their order."""
        return Records(
            self.kind,
            {
                name: kept[np.array(places, dtype=int)]
                if isinstance(kept, np.ndarray)
                else [kept[place] for place in places]
                for name, kept in self.cells.items()
            },
        )

    def column(self, name: str) -> npt.NDArray[np.float64] | npt.NDArray[np.object_]:
        """A column as an array: of numbers in float64, NaN for none; of texts and of lists as objects.

        Where each cell is an array of the same length, the columns of the array are their numbers.
        """
        if name not in self.cells:
            raise NoSuchName("column", name, self.cells)
        declared, kept = self.kind.declared(name), self.cells[name]
        if isinstance(kept, np.ndarray) and kept.ndim > 1:
            return kept.astype(np.float64, copy=False)
        if _are_numbers(kept) if declared is None else declared.is_number:
            return np.asarray(kept, dtype=np.float64)
        return np.fromiter(kept, dtype=object, count=self._len)

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """A column of numbers, NaN for none; ValueError for one of texts."""
        return self.column(name).astype(np.float64, copy=False)

    def grid(self, name: str, *axes: str) -> npt.NDArray[np.float64]:
        """A column of numbers by whole numbers of others, as by layer and head; NaN where there is no row.

        A row that lacks one of them, as an MLP has no head, has no place. UserError for a column of
        something else, and for several rows at one place, such as heads of an encoder and a decoder.
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
                raise UserError(f"grid: {axis} must hold whole numbers from 0")
        places = np.array([cells[is_placed] for cells in placed], dtype=int)
        if np.unique(places, axis=1).shape != places.shape:
            several = f"grid: several rows have the same {' and '.join(axes)}"
            raise UserError(f"{several}: name further axes, or choose rows with where()")
        grid = np.full(places.max(axis=1, initial=-1) + 1, np.nan)
        grid[tuple(places)] = numbers[is_placed]
        return grid

    def kept_names(self) -> list[str]:
        """The columns whose numbers a store keeps."""
        declared = {name: self.kind.declared(name) for name in self.cells}
        return [name for name, column in declared.items() if column is not None and column.is_in_stores]

    def to_pandas(self) -> "DataFrame":
        """A data frame with these columns; UserError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas: needs: pip install pandas") from None
        return pandas.DataFrame({name: [row[name] for row in self] for name in self.cells})


@dataclass(frozen=True)
class StatisticGroup:
    """Where a report has fields of a result: under which name, and in what form.

    A table is a list of rows of the class `kind`. With `axes` its columns are tensors: of one axis the rows',
    of two the rows' and that of the arrays in its cells. A single row is an object of numbers, and so are
    fields that are numbers themselves. Tensors whose axes depend on what was asked for, without a `kind`, are
    there as they are. A table that `may_be_empty` has no rows where a report lacks it. Of texts that run
    together a single row is a table with one row per text, whose columns are tensors along `batch`.
    `is_bare_alone`: a table of one row is an object of its numbers.
    """

    name: str
    kind: type[Record] | None
    fields: tuple[str, ...]
    axes: tuple[str, ...] = ()
    is_kept: bool = True
    is_needed: bool = True
    may_be_empty: bool = False
    is_single: bool = False
    of_numbers: bool = False
    is_bare_alone: bool = False

    @property
    def is_table(self) -> bool:
        """Whether a report has it as a list of rows."""
        return not (self.axes or self.is_single)

    def statistic(self, result: "Result") -> Statistic | None:
        """What a report holds of it; None for a table that is not there."""
        if self.of_numbers:
            return Numbers({name: getattr(result, name) for name in self.fields})
        value: object = getattr(result, self.fields[0])
        axes = ("batch",) if self.is_single else self.axes
        if isinstance(value, Records) and axes:
            tensors = {name: NamedTensor(axes, np.asarray(kept)) for name, kept in value.cells.items()}
            return Tensors(tensors)
        if isinstance(value, Records) and self.is_bare_alone and len(value) == 1:
            value = value[0]
        if isinstance(value, Record):
            return value.numbers()
        # A report has no table without rows.
        return value if isinstance(value, Tensors | Table) and (value or self.is_needed) else None

    def of_text(self, value: object, place: int) -> object:
        """Of a field of several texts that ran together that of one."""
        if isinstance(value, Records) and self.is_single:
            return value[place]
        return of_text(value, place) if isinstance(value, Tensors) else value

    def read(self, statistic: Statistic) -> dict[str, object]:
        """The fields from what a report holds; TypeError for another form."""
        (first, *_) = self.fields
        if self.kind is None:
            if isinstance(statistic, Tensors):
                return {first: statistic}
            raise TypeError(f"{self.name} has another form")
        match statistic:
            case Tensors() if self.axes:
                if any(tensor.axes != self.axes for tensor in statistic.values()):
                    raise TypeError(f"{self.name} must have the axes {', '.join(self.axes)}")
                arrays = {name: tensor.values for name, tensor in statistic.items()}
                return {first: self.kind.table(**arrays)}
            case Numbers() if self.is_single:
                numbers = self.kind.single(**statistic)
                return {name: numbers[name] for name in self.fields} if self.of_numbers else {first: numbers}
            case Numbers() if self.is_bare_alone:
                return {first: self.kind.rows([statistic])}
            case Records() if self.is_table and statistic.kind is self.kind:
                return {first: statistic}
            case Table() if self.is_table:
                return {first: self.kind.rows(statistic)}
        raise TypeError(f"{self.name} has another form")


def group(
    name: str = "",
    *,
    axes: tuple[str, ...] = (),
    is_kept: bool = True,
    is_needed: bool = True,
    may_be_empty: bool = False,
    is_bare_alone: bool = False,
) -> T:  # type: ignore[type-var]  # the field's annotation says which type
    """The declaration of a field of a result that stands among a report's statistics; see `StatisticGroup`.

    By default it has the field's name. What may be empty, or is not needed, need not be given.
    """
    metadata = {"group": (name, axes, is_kept, is_needed, may_be_empty, is_bare_alone)}
    must_be_given = is_needed and not may_be_empty
    return cast(T, field(metadata=metadata) if must_be_given else field(default=None, metadata=metadata))


@overload
def tensor(*, num_axes: int) -> NamedTensor | None: ...


@overload
def tensor(*, num_axes: int, is_needed: Literal[True]) -> NamedTensor: ...


def tensor(*, num_axes: int, is_needed: bool = False) -> NamedTensor | None:
    """The declaration of a field that is one of a report's tensors, with so many axes or more.

    It is filled in where a result is read from a report.
    """
    metadata = {"tensor": (num_axes, is_needed)}
    declared = field(metadata=metadata) if is_needed else field(default=None, metadata=metadata)
    return cast(NamedTensor | None, declared)


def number(name: str, *, unit: str = "") -> T:  # type: ignore[type-var]  # see group
    """The declaration of a single number, one of the group of that name."""
    return cast(T, field(metadata={"number": (name, unit)}))


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What a question found: tables and single numbers; other fields are not in a report.

    `undeclared` are the statistics that a report of another attn has beside these, by their names.
    """

    undeclared: Mapping[str, Statistic] = field(default_factory=dict)
    table_titles: ClassVar[Mapping[str, str]] = {}
    """Titles of its tables, by their names, for tables whose title is not the name."""
    is_of_store: ClassVar[bool] = False
    """True if it summarises runs: its tokens are values of settings, and tensors show its rows of heads."""
    marks_note: ClassVar[str] = ""
    """A sentence of the page that says what the marks in its maps are."""
    title: ClassVar[str] = ""
    """The title of a report of it, if its settings have none."""
    compares: ClassVar[bool] = False
    """True if a title says what a report is about: what it compares."""
    has_own_place: ClassVar[bool] = False
    """True if it is of all heads, whatever head the settings name."""
    explains_figure: ClassVar[bool] = False
    """True if a figure says below its title how to read it."""

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
        """The example that its maps are of; empty if they are not of one."""
        return ""

    def words_of_queries(self) -> list[str]:
        """The words that the queries of its maps wrote; empty if they wrote none."""
        return []

    def marks(self, name: str) -> list[tuple[int, int, bool]]:
        """Query, key and whether it was found, of each cell to be marked in the map of that name."""
        return []

    @classmethod
    @cache
    def groups(cls) -> tuple[StatisticGroup, ...]:
        """The fields that stand among a report's statistics, in their order."""
        groups: dict[str, StatisticGroup] = {}
        numbers: dict[str, dict[str, ColumnKind]] = {}
        for part in fields(cls):
            annotation = next(kind for kind in _alternatives(part.type) if kind is not type(None))
            if "group" in part.metadata:
                name, axes, *flags = part.metadata["group"]
                is_kept, is_needed, may_be_empty, is_bare_alone = flags
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
                )
            elif "number" in part.metadata:
                name, unit = part.metadata["number"]
                numbers.setdefault(name, {})[part.name] = ColumnKind(unit=unit).named(part.name, part.type)
                kind = type("SingleNumbers", (Record,), {"columns": numbers[name]})
                groups[name] = StatisticGroup(name, kind, (*numbers[name],), is_single=True, of_numbers=True)
        return (*groups.values(),)

    @classmethod
    def tensors(cls) -> dict[str, tuple[int, bool]]:
        """The fields that are tensors of a report: their least number of axes, and whether all have them."""
        return {part.name: part.metadata["tensor"] for part in fields(cls) if "tensor" in part.metadata}

    def statistics(self) -> dict[str, Statistic]:
        """What a report's JSON has of it: no table without rows."""
        statistics = {place.name: place.statistic(self) for place in self.groups()}
        return {name: statistic for name, statistic in statistics.items() if statistic} | {**self.undeclared}

    def in_report(self, tensors: Mapping[str, NamedTensor]) -> "Result":
        """What a report with these tensors has of it, be it saved or not: some of them, and its groups.

        Without a tensor that it needs the report has its statistics alone.
        """
        if any(is_needed and name not in tensors for name, (_, is_needed) in self.tensors().items()):
            return UntypedResult(undeclared=self.statistics())
        values: dict[str, object] = {name: tensors.get(name) for name in self.tensors()}
        for place in self.groups():
            of_group = {name: getattr(self, name) for name in place.fields}
            values |= of_group if place.is_needed or any(of_group.values()) else {}
        return type(self)(**values, undeclared=self.undeclared)

    def of_text(self, place: int) -> Self:
        """The result of one of several texts that ran together, whose numbers stand along `batch`."""
        values = {
            name: part.of_text(getattr(self, name), place) for part in self.groups() for name in part.fields
        }
        undeclared = {name: of_text(statistic, place) for name, statistic in self.undeclared.items()}
        return replace(self, **values, undeclared=undeclared)

    @classmethod
    def read(
        cls, statistics: Mapping[str, Statistic], tensors: Mapping[str, NamedTensor] = MappingProxyType({})
    ) -> Self:
        """The result whose statistics these are; TypeError where something is missing or has another form."""
        declared = {place.name for place in cls.groups()}
        undeclared = {name: statistic for name, statistic in statistics.items() if name not in declared}
        values: dict[str, object] = {}
        for name, (num_axes, is_needed) in cls.tensors().items():
            drawn = tensors.get(name)
            if drawn is None and is_needed:
                raise TypeError(f"{cls.__name__} needs {name}")
            if drawn is not None and (drawn.values.ndim < num_axes or not drawn.values.size):
                raise TypeError(f"{name} must have {num_axes} axes or more, and numbers")
            values[name] = drawn
        for place in cls.groups():
            if place.name in statistics:
                values |= place.read(statistics[place.name])
            elif place.is_needed and not place.may_be_empty:
                raise TypeError(f"{cls.__name__} needs {place.name}")
        return cls(**values, undeclared=undeclared)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What a report calls the parts of it."""
        return (*(place.name for place in cls.groups()), *cls.tensors())

    def __repr__(self) -> str:
        return self._first_rows().text()

    def _repr_html_(self) -> str:
        return self._first_rows().html()

    def _first_rows(self) -> SmallTable:
        """Its first table that has rows, or its first one where none has; else its first single numbers."""
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
    """Statistics of which no class says what their columns are: all of them are `undeclared`.

    They are of an experiment without such a class, as a plugin's, of another tool, or were edited. `kind` is
    what a saved report calls them.
    """

    kind: str = ""

    def in_report(self, tensors: Mapping[str, NamedTensor]) -> Result:
        """See `Result.in_report`: all of it."""
        return self
