"""The values of a report by column, and conditions on them, `NAME OP NUMBER`.

The columns follow from the shapes of the statistics. Conditions are parsed for --where, and checked in every
run for --expect.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from attncli.core.names import HEAD_PATTERNS, PATTERNS, STARTS_SPECIAL, WITHOUT_FIRST, source_number
from attncli.errors import UserError, nearest
from attncli.records.columns import Records, Result
from attncli.records.kinds import KINDS
from attncli.report import PLACES, NamedTensor, Numbers, Report, Statistic, Table, Tensors
from attncli.settings.fields import SUMMARIES, Spec, in_group

GROUP_SUMMARY = ("count", "mean", "std", "min", "max")
"""What `attn results` reports on the values of a group."""

Part = TypeVar("Part")


class Column(NamedTuple):
    """What one value is; `token` is the query of a row statistic, or the key of received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


STACKS = {"encoder": "encoder.self.", "decoder": "decoder.self.", "cross": "decoder.cross."}
"""What the names of a head's statistics begin with in a model of several stacks; in others it is nothing."""
ROWS = ".rows"
"""What the name of a statistic ends with where its value is the number of rows that the statistic is from."""


def stack_and_name(statistic: str) -> tuple[str, str]:
    """The stack of a statistic in a survey, and its name there; `self` in a model of one stack."""
    for stack, prefix in STACKS.items():
        if statistic.startswith(prefix):
            return stack, statistic.removeprefix(prefix)
    return "self", statistic


Columns = tuple[Column, ...]
Shape = tuple[Any, ...]
"""One of the functions below and its arguments, from which the columns of some values follow."""


def one_column(name: str, layer: int | None, head: int | None) -> Iterator[Column]:
    """The column of a single number."""
    yield Column(name, layer, head)


def grid_columns(name: str, num_layers: int, num_heads: int) -> Iterator[Column]:
    """One for each layer and head, layer by layer."""
    return (Column(name, *place) for place in product(range(num_layers), range(num_heads)))


def row_columns(
    name: str,
    layer: int | None,
    head: int | None,
    num_heads: int | None,
    num_batches: int | None,
    num_tokens: int,
) -> Iterator[Column]:
    """The summaries of each head, then its `num_tokens` rows, 0 where rows are not kept."""
    heads = [head] if num_heads is None else range(num_heads)
    batches = [None] if num_batches is None else range(num_batches)
    for place, how in product(heads, SUMMARIES):
        yield Column(f"{name}.{how}", layer, place)
    for row in product(heads, batches, range(num_tokens)):
        yield Column(name, layer, *row)


def survey_columns(heads: tuple[tuple[int, int, str, tuple[str, ...]], ...]) -> Iterator[Column]:
    """Head by head; each has its layer, head, the prefix of its names, and the names."""
    for layer, head, prefix, names in heads:
        yield from (Column(prefix + name, layer, head) for name in names)


class ColumnsOfShapes(tuple[Column, ...]):
    """Columns that go to another process as the shapes they come of: of a survey there are thousands."""

    shapes: tuple[Shape, ...]

    def __reduce__(self) -> tuple[Callable[..., Columns], tuple[tuple[Shape, ...]]]:
        return columns_of_shapes, (self.shapes,)


@lru_cache(maxsize=256)
def columns_of_shapes(shapes: tuple[Shape, ...]) -> Columns:
    """The columns of a report; reports with equal shapes share the same tuple object."""
    columns = ColumnsOfShapes(column for columns, *about in shapes for column in columns(*about))
    columns.shapes = shapes
    return columns


class OwnPart(Mapping[str, Part]):
    """The part of one text in the tensors or statistics of several, taken when it is asked for."""

    __slots__ = ("place", "take", "whole")

    def __init__(self, whole: Mapping[str, Part], place: int, take: Callable[[Part, int], Part]) -> None:
        self.whole, self.place, self.take = whole, place, take

    def __getitem__(self, name: str) -> Part:
        return self.take(self.whole[name], self.place)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


# Keys by rank, and what only describes the rows to people, are not statistics.
LEFT_OUT = (
    *("top_keys", "top_weights", "quantiles", "extremes", "strongest"),
    *("intervals", "written", "named_tokens"),
)


LOOKED_AT = ("query", "key", "key_weight")
"""The columns of a head that say what it looks at in one text, at one token."""


class ValueTable(NamedTuple):
    """The values of the reports at these places, one row per report in float64; NaN for a missing number."""

    columns: Columns
    places: list[int]
    values: np.ndarray


def value_tables(reports: Sequence[Report], *, rows: bool = False) -> list[ValueTable]:
    """The values of reports; with `rows` also the statistics of every row.

    Reports that were computed together have one table, taken from the arrays that they share.
    """
    together: dict[int, list[int]] = {}
    for place, report in enumerate(reports):
        statistics = report.statistics
        shared = id(statistics.whole) if isinstance(statistics, OwnPart) else -1 - place
        together.setdefault(shared, []).append(place)
    tables = []
    for places in together.values():
        leaves = list(_leaves([reports[place] for place in places], rows))
        values = np.concatenate([np.empty((len(places), 0)), *(numbers for _, numbers in leaves)], axis=1)
        values[~np.isfinite(values)] = np.nan
        tables.append(ValueTable(columns_of_shapes(tuple(shape for shape, _ in leaves)), places, values))
    return tables


def values_of(report: Report, *, rows: bool = False) -> tuple[Columns, np.ndarray]:
    """The columns of a report, and its value in each."""
    ((columns, _, values),) = value_tables([report], rows=rows)
    return columns, values[0]


Leaf = tuple[Shape, np.ndarray]
"""What the columns of some values follow from, and the values (report, column)."""


def _leaves(reports: Sequence[Report], rows: bool) -> Iterator[Leaf]:
    """The values of one report, or of several that are parts of the same whole."""
    first = reports[0]
    statistics, tensors, members = first.statistics, first.tensors, None
    if isinstance(statistics, OwnPart) and isinstance(tensors, OwnPart):
        members = [report.statistics.place for report in reports if isinstance(report.statistics, OwnPart)]
        statistics, tensors = statistics.whole, tensors.whole
    # A layer or head may also be a word, which is not a place.
    place = [index if isinstance(index, int) else None for index in map(first.spec.get, PLACES)]
    stacks = _stacks_of(statistics)
    kind = KINDS.get(first.kind)
    left_out = {*LEFT_OUT, *(group.name for group in (kind.groups() if kind else ()) if not group.is_kept)}
    for group, found in statistics.items():
        if group in ("heads", WITHOUT_FIRST) and isinstance(found, Table):
            yield _survey(found, stacks, len(reports), "" if group == "heads" else f"{group}.")
        elif group == f"{WITHOUT_FIRST}_rows" and isinstance(found, Table):
            yield from _rows_of_rest(found, stacks, len(reports))
        elif group == "pattern_rows" and isinstance(found, Table):
            yield from _stacks(found, stacks, len(reports))
        elif group == "patterns" and isinstance(found, Table):
            yield from _rows_of_patterns(found, stacks, len(reports))
        elif isinstance(found, Tensors):
            for name, tensor in found.items():
                axes, values = _of_members(tensor, members)
                if not axes:
                    yield (one_column, f"{group}.{name}", *place), values.astype(np.float64)[:, None]
                elif (
                    not {group, name} & left_out and "layer" not in axes
                ):  # the table of heads has those means
                    yield _row_leaf(name, axes, values, place, rows)
        elif group not in left_out:
            for name, number in _single_numbers(group, found):
                yield (one_column, name, *place), np.full((len(reports), 1), number, dtype=np.float64)
    for name, tensor in tensors.items():
        axes, values = _of_members(tensor, members)
        if axes == PLACES and "heads" not in statistics:  # otherwise the table of heads has the same numbers
            yield (grid_columns, name, *values.shape[1:]), values.reshape(len(values), -1)


def _of_members(tensor: NamedTensor, members: list[int] | None) -> tuple[tuple[str, ...], np.ndarray]:
    """The axes of a tensor, and the values of each member of a whole, or of the only report."""
    if members is None:
        return tensor.axes, tensor.values[None]
    assert tensor.axes[0] == "batch", tensor.axes
    is_whole = members == list(range(len(tensor.values)))
    return tensor.axes[1:], tensor.values if is_whole else tensor.values[members]


def _single_numbers(group: str, found: Numbers | Table) -> Iterator[tuple[str, Any]]:
    """Every number by its full name; rows of a table and items of a list are named by their place."""
    rows = {group: found} if isinstance(found, Numbers) else {f"{group}.{i}": r for i, r in enumerate(found)}
    kept = found.kept_names() if isinstance(found, Records) else None
    for before, row in rows.items():
        for name, cell in row.items():
            if kept is not None and name not in kept:
                continue
            listed = {f".{i}": item for i, item in enumerate(cell)} if isinstance(cell, list) else {"": cell}
            for place, item in listed.items():
                if not isinstance(item, str):
                    yield f"{before}.{name}{place}", np.nan if item is None else item


def _row_leaf(
    name: str, axes: tuple[str, ...], values: np.ndarray, place: Sequence[int | None], rows: bool
) -> Leaf:
    """A statistic of rows: the summaries of each head, then with `rows` every row."""
    count = len(values)
    num_heads = values.shape[1 + axes.index("head")] if "head" in axes else None
    by_head = values[:, None] if num_heads is None else np.moveaxis(values, 1 + axes.index("head"), 1)
    num_batches = by_head.shape[2] if "batch" in axes else None
    # The last axis is contiguous, so that a sum is added up in the same order alone and together.
    flat = np.ascontiguousarray(by_head, dtype=np.float64).reshape(count, num_heads or 1, -1)
    numbers = [_summaries(flat).reshape(count, -1), *([flat.reshape(count, -1)] if rows else [])]
    num_tokens = flat.shape[2] // (num_batches or 1) if rows else 0
    return (row_columns, name, *place, num_heads, num_batches, num_tokens), np.concatenate(numbers, axis=1)


@lru_cache(maxsize=256)
def _names_of_numbers(names: tuple[str, ...], types: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for name, of_type in zip(names, types, strict=True)
        if name not in (*PLACES, *LOOKED_AT) and issubclass(of_type, int | float)
    )


def _rows_of_patterns(patterns: Table, of_heads: Iterable[str], num_reports: int) -> Iterator[Leaf]:
    """From how many rows of the text the statistic of each pattern comes."""
    prefixes = _prefixes(of_heads)
    for row in patterns:
        if row["statistic"]:
            name = str(row["statistic"]).partition(" ")[0]
            shape = (one_column, f"{prefixes[str(row['stack'])]}{name}{ROWS}", None, None)
            yield shape, np.full((num_reports, 1), row["rows"], dtype=np.float64)


def _stacks(stacks: Table, of_heads: Iterable[str], num_reports: int) -> Iterator[Leaf]:
    """For each stack 1 where the text begins with a special token, else 0; and the rows that a statistic
    comes from that names no head.
    """
    prefixes = _prefixes(of_heads)
    naming = {pattern.statistic for pattern in HEAD_PATTERNS.values()}
    for row in stacks:
        numbers = {f"{name}{ROWS}": row.get(name) for name in PATTERNS if name not in naming}
        for name, number in {STARTS_SPECIAL: row[STARTS_SPECIAL], **numbers}.items():
            if number is not None:
                shape = (one_column, f"{prefixes[str(row['stack'])]}{name}", None, None)
                yield shape, np.full((num_reports, 1), number, dtype=np.float64)


def _rows_of_rest(stacks: Table, of_heads: Iterable[str], num_reports: int) -> Iterator[Leaf]:
    """The same where the first key is left out, of each statistic that names a pattern."""
    prefixes = _prefixes(of_heads)
    for row in stacks:
        for name, number in row.items():
            if name != "stack" and number is not None:
                full_name = f"{WITHOUT_FIRST}.{name}{'' if name == STARTS_SPECIAL else ROWS}"
                shape = (one_column, f"{prefixes[str(row['stack'])]}{full_name}", None, None)
                yield shape, np.full((num_reports, 1), number, dtype=np.float64)


def _prefixes(stacks: Iterable[str]) -> dict[str, str]:
    """What the names of each stack begin with."""
    names = {*stacks}
    return {stack: STACKS[stack] if len(names) > 1 else "" for stack in names}


def _stacks_of(statistics: Mapping[str, Statistic]) -> set[str]:
    """Those of a survey: of the heads that it lists, and of those that were left out (`--top`)."""
    tables = [statistics[name] for name in ("heads", "pattern_rows") if name in statistics]
    return {
        str(row["stack"]) for table in tables if isinstance(table, Table) for row in table if "stack" in row
    }


def _survey(heads: Table, stacks: Iterable[str], num_reports: int, before: str) -> Leaf:
    """The values of a survey of heads, with that before the names of the statistics."""
    prefixes = {stack: f"{prefix}{before}" for stack, prefix in _prefixes(stacks).items()}
    shape: list[Any] = []
    numbers: list[Any] = []
    kept = [name for name in heads.kept_names() if name not in PLACES] if isinstance(heads, Records) else None
    for row in heads:
        names = _names_of_numbers(tuple(row), tuple(map(type, row.values()))) if kept is None else tuple(kept)
        shape.append((row["layer"], row["head"], prefixes[str(row["stack"])], names))
        numbers += [row[name] for name in names]
    return (survey_columns, tuple(shape)), np.array([numbers] * num_reports, dtype=np.float64)


class LayerOfHeads(NamedTuple):
    """The statistics of the heads of a layer on some texts: (text, head, statistic)."""

    stack: str
    layer: int
    names: tuple[str, ...]
    values: np.ndarray


def survey_values(
    heads: Sequence[LayerOfHeads],
    rest: Sequence[LayerOfHeads],
    others: Sequence[Mapping[str, Numbers | Table]],
) -> ValueTable:
    """The values of the surveys of some texts, as of their reports: of the heads, of the rest beside the
    first key, and of each text the `others` of its statistics, of these heads.
    """
    of_heads = {layer.stack for layer in heads}
    names = tuple(dict.fromkeys(name for layer in heads for name in layer.names))
    shapes: list[Shape] = []
    columns: list[np.ndarray] = []

    def add(leaves: Sequence[Sequence[Leaf]]) -> None:
        shapes.extend(shape for shape, _ in leaves[0])
        columns.append(np.array([[float(number[0, 0]) for _, number in of_text] for of_text in leaves]))

    def add_survey(layers: Sequence[LayerOfHeads], before: str) -> None:
        prefixes = {stack: f"{prefix}{before}" for stack, prefix in _prefixes(of_heads).items()}
        places = [(layer, head) for layer in layers for head in range(layer.values.shape[1])]
        shape = [(layer.layer, head, prefixes[layer.stack], layer.names) for layer, head in places]
        shapes.append((survey_columns, tuple(shape)))
        columns.extend(layer.values.reshape(len(others), -1) for layer in layers)

    add_survey([_with_names(layer, names) for layer in heads], "")
    add(
        [
            [
                *_rows_of_patterns(_table(tables, "patterns"), of_heads, 1),
                *_stacks(_table(tables, "pattern_rows"), of_heads, 1),
            ]
            for tables in others
        ]
    )
    if rest:
        add_survey(rest, f"{WITHOUT_FIRST}.")
        add([[*_rows_of_rest(_table(tables, f"{WITHOUT_FIRST}_rows"), of_heads, 1)] for tables in others])
    add([_leaves_of_numbers("model", tables["model"]) for tables in others])
    values = np.concatenate(columns, axis=1)
    values[~np.isfinite(values)] = np.nan
    return ValueTable(columns_of_shapes(tuple(shapes)), [*range(len(others))], values)


def _table(tables: Mapping[str, Numbers | Table], name: str) -> Table:
    table = tables[name]
    assert isinstance(table, Table)
    return table


def _leaves_of_numbers(group: str, numbers: Numbers | Table) -> list[Leaf]:
    return [
        ((one_column, name, None, None), np.full((1, 1), number, dtype=np.float64))
        for name, number in _single_numbers(group, numbers)
    ]


def _with_names(layer: LayerOfHeads, names: tuple[str, ...]) -> LayerOfHeads:
    """The same with NaN for what is measured of other layers alone."""
    if layer.names == names:
        return layer
    values = np.full((*layer.values.shape[:2], len(names)), np.nan)
    values[..., [names.index(name) for name in layer.names]] = layer.values
    return layer._replace(names=names, values=values)


def _summaries(flat: np.ndarray) -> np.ndarray:
    """Mean, minimum and maximum over the last axis, without missing numbers; NaN where all are missing."""
    known = np.isfinite(flat)
    if known.all():
        return np.stack([flat.mean(axis=-1), flat.min(axis=-1), flat.max(axis=-1)], axis=-1)
    counts = known.sum(axis=-1)
    sums = np.where(known, flat, 0.0).sum(axis=-1)
    means = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    least = np.where(known, flat, np.inf).min(axis=-1)
    most = np.where(known, flat, -np.inf).max(axis=-1)
    return np.stack([means, least, most], axis=-1)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
FOR_TEXTS = ("=", "==", "!=")
FORM = re.compile(r"\s*([\w.\-]+)\s*(<=|>=|==|!=|<|>|=)\s*(.*?)\s*")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Condition(NamedTuple):
    """A name, a comparison, and what to compare with: a number or None, and the text as it was typed."""

    name: str
    operator: str
    number: float | None
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.text}"

    def holds(self, found: Any) -> Any:
        """Whether it holds for a value, or for each number of an array; never for a missing number."""
        compare = OPERATORS[self.operator]
        if self.number is not None and not isinstance(found, str):
            if found is None or isinstance(found, bool):
                return False
            if isinstance(found, np.ndarray):
                # Stores round to float32: what is written as 0.1 is still equal to 0.1.
                found = np.where(found == _nearest_single(self.number), self.number, found)
            # NaN != x is true in floating point; here a missing number satisfies nothing.
            return compare(found, self.number) & (found == found)
        if self.operator not in FOR_TEXTS:
            return False
        # YAML reads True as true, and so does this.
        return compare(_text(found), self.text.lower() if isinstance(found, bool) else self.text)


def _nearest_single(number: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _where(column: Column) -> str:
    """` in 5:1`, a head of a model; ` in head 4 in token 2` of one layer; nothing for a single number."""
    is_head = column.layer is not None and column.head is not None
    head = f" in {column.layer}:{column.head}" if is_head else ""
    indices = [(axis, getattr(column, axis)) for axis in Column._fields[3 if is_head else 1 :]]
    return head + "".join(f" in {axis} {index}" for axis, index in indices if index is not None)


def parse_conditions(texts: Iterable[str], flag: str, *, numbers_only: bool) -> tuple[Condition, ...]:
    """The conditions of texts like `entropy.mean < 2`; UserError for those that are not conditions."""
    conditions, errors = [], []
    for text in texts:
        match = FORM.fullmatch(text)
        value = _number(match[3], match[1]) if match else None
        if match is None or not match[3]:
            errors.append(f"{flag} {text!r}: must be a name, one of {' '.join(OPERATORS)}, and a value")
        elif value is None and numbers_only:
            errors.append(f"{flag} {text!r}: must end in a number (got {match[3]})")
        elif value is None and match[2] not in FOR_TEXTS:
            errors.append(f"{flag} {text!r}: a text is compared with = or != (got {match[2]})")
        else:
            conditions.append(Condition(match[1], match[2], value, match[3]))
    if errors:
        raise UserError(*errors)
    return tuple(conditions)


NAMES_A_SOURCE = "source.first"
"""The statistic that is the number of a source, which may be compared with its name."""


def _number(text: str, name: str) -> float | None:
    if name == NAMES_A_SOURCE and (source := source_number(text)) is not None:
        return float(source)
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None


def listed(names: Iterable[str]) -> str:
    """Names for an error, those with the same endings together: `entropy, distance (.mean .min .max)`."""
    endings: dict[str, list[str]] = {}
    for name in names:
        stem, dot, ending = name.rpartition(".")
        endings.setdefault(stem or name, []).append(dot + ending if stem else "")
    stems: dict[tuple[str, ...], list[str]] = {}
    for stem, of_stem in endings.items():
        stems.setdefault(tuple(of_stem), []).append(stem)
    return "; ".join(", ".join(alike) + _endings(*of_stem) for of_stem, alike in stems.items())


def _endings(*endings: str) -> str:
    return f" ({' '.join(ending or 'alone' for ending in endings)})" if any(endings) else ""


def as_declared(name: str) -> str:
    """A statistic as a Spec names it: N for a place in a list, without the stack of a head in a survey."""
    return NUMBER.sub("N", stack_and_name(name)[1])


def kept_names(kind: type[Result], left_out: Collection[str]) -> tuple[list[str], list[str]]:
    """The statistics of rows, and of keys, that a store keeps of a kind of result; all its other numbers.

    Tensors without columns are those of rows, whose names the Spec knows.
    """
    rows: list[str] = []
    singles: list[str] = []
    for group in kind.groups():
        if not group.is_kept or group.name in left_out or group.kind is None:
            continue
        columns = [column for name, column in group.kind.columns.items() if name not in left_out]
        names = [column.name for column in columns if column.is_number and column.is_kept]
        names += [f"{column.name}.N" for column in columns if column.is_list]
        if group.axes:
            rows += names
        elif group.name == "heads" and not group.is_single:
            singles += [name for name in names if name not in PLACES]
        else:
            singles += in_group(group.name if group.is_single else f"{group.name}.N", *names)
    return rows, singles


def declared_statistics(spec: Spec, *, rows: bool = False) -> Iterator[str]:
    """The names of the statistics that runs with these settings will have; with `rows` each row's, too."""
    kind = KINDS.get(spec.result_kind())
    of_rows, singles = [*spec.row_statistics()], [*spec.single_statistics()]
    if kind is not None:
        of_kind, singles = kept_names(kind, spec.unmeasured())
        of_rows += of_kind
    yield from singles
    for row in of_rows:
        yield from (f"{row}.{how}" for how in SUMMARIES)
        if rows:
            yield row


def refuse_unknown(
    conditions: Sequence[Condition], specs: Iterable[Spec], *, rows: bool, flag: str = "--expect"
) -> None:
    """UserError for statistics that no experiment will have; with `rows` every row is kept."""
    missing, known = list(conditions), dict[str, None]()
    for spec in specs:
        if not missing:
            return
        known |= dict.fromkeys(declared_statistics(spec, rows=rows))
        missing = [condition for condition in missing if as_declared(condition.name) not in known]
    if missing:
        raise UserError(
            *(
                f"{flag} '{condition}': no run will have {condition.name}"
                f"{nearest(condition.name, known)}; known: {listed(known)}"
                for condition in missing
            )
        )


def _excess(condition: Condition, values: np.ndarray) -> np.ndarray:
    """How far values are from what a condition wants; NaN, which is no number, is the farthest of all."""
    assert condition.number is not None, condition
    above = values - condition.number
    return {"<": above, "<=": above, ">": -above, ">=": -above}.get(condition.operator, abs(above))


class Expectations:
    """The conditions that every run must meet, and which of them had anything to check."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = conditions
        self._places: dict[Columns, dict[Condition, list[int]]] = {}

    def broken(self, columns: Columns, values: np.ndarray) -> list[str]:
        """A line for each expectation that does not hold, with the worst number and where that is:
        `expected entropy < 2: got 2.3 in 5:1 (and in 3 more)`.
        """
        if columns not in self._places:
            self._places[columns] = {
                condition: [i for i, column in enumerate(columns) if column.statistic == condition.name]
                for condition in self.conditions
            }
        lines = []
        for condition, places in self._places[columns].items():
            found = values[places]
            wrong = np.flatnonzero(~np.asarray(condition.holds(found), dtype=bool))
            if len(wrong):
                worst = wrong[int(_excess(condition, found[wrong]).argmax())]
                column, value = columns[places[worst]], float(found[worst])
                where = _where(column)
                more = f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                number = "no number" if np.isnan(value) else repr(value)
                lines.append(f"expected {condition}: got {number}{where}{more}")
        return lines

    def unmet(self, known: Collection[str] = (), others: str = "") -> list[str]:
        """A line for each condition whose statistic no run had: a condition that checks nothing must fail.

        `known` are names to give instead, and `others` says where there are more.
        """
        names = {column.statistic for columns in self._places for column in columns}
        instead = f"; known: {listed(known)}{others}" if known else ""
        return [
            f"--expect '{condition}': no run has {condition.name}"
            f"{nearest(condition.name, [*known, *names])}{instead}"
            for condition in self.conditions
            if condition.name not in names
        ]
