"""The values of a report by column, and conditions on these values, `NAME OP NUMBER`.

The shapes of the statistics determine the columns. Conditions are parsed for --where, and checked in every
run for --expect.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attncli.core.names import source_number
from attncli.errors import UserError, nearest
from attncli.records.columns import Records, Result
from attncli.records.kinds import KINDS
from attncli.records.report import PLACES, NamedTensor, Numbers, Report, Table, Tensors
from attncli.records.stored_columns import (
    HeadColumns,
    Leaf,
    OneColumn,
    StoredColumn,
    StoredColumns,
    SurveyNumber,
    ValueTable,
    side_by_side,
    stack_and_name,
    survey_number,
)
from attncli.records.values import has_head_rows
from attncli.settings.fields import SUMMARIES, Spec, in_group

GROUP_SUMMARY = ("count", "mean", "std", "min", "max")
"""The statistics of a group in `attn results`."""


@dataclass(frozen=True, slots=True)
class GridColumns:
    """The shape of a tensor (layer, head): a column for each head, layer by layer."""

    name: str
    num_layers: int
    num_heads: int

    def columns(self) -> Iterator[StoredColumn]:
        """Yield the column of each head."""
        places = product(range(self.num_layers), range(self.num_heads))
        return (StoredColumn(self.name, *place) for place in places)


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The shape of a row statistic: the summaries of each head, then the rows of each head.

    `num_tokens` is 0 if rows are not stored.
    """

    name: str
    layer: int | None
    head: int | None
    num_heads: int | None
    num_batches: int | None
    num_tokens: int

    def columns(self) -> Iterator[StoredColumn]:
        """Yield the columns of the summaries and of the rows."""
        heads = [self.head] if self.num_heads is None else range(self.num_heads)
        batches = [None] if self.num_batches is None else range(self.num_batches)
        for head, how in product(heads, SUMMARIES):
            yield StoredColumn(f"{self.name}.{how}", self.layer, head)
        for row in product(heads, batches, range(self.num_tokens)):
            yield StoredColumn(self.name, self.layer, *row)


# ranked keys, and row descriptions for people, are not statistics
LEFT_OUT = (
    *("top_keys", "top_weights", "quantiles", "extremes", "strongest"),
    *("intervals", "written", "named_tokens"),
)


LOOKED_AT = ("query", "key", "key_weight")
"""The columns on the key that a head attends to most at one token of one text."""


def values_of(report: Report, *, rows: bool = False) -> tuple[StoredColumns, np.ndarray]:
    """Return the columns of a report and its values; with `rows`, also the statistics of every row."""
    columns, values = _value_table(report, None, rows)
    return columns, values[0]


def text_values(together: Report, num_texts: int, *, rows: bool = False) -> ValueTable:
    """Return the columns and values of several texts that ran together, along the axis `batch`."""
    return _value_table(together, num_texts, rows)


def _value_table(report: Report, num_texts: int | None, rows: bool) -> ValueTable:
    return side_by_side(_leaves(report, num_texts, rows), num_texts or 1)


def _leaves(report: Report, num_texts: int | None, rows: bool) -> Iterator[Leaf]:
    """Yield the values of a report, for one text or for several that ran together."""
    # a layer or head may also be a word, which is not an index
    place = [index if isinstance(index, int) else None for index in map(report.spec.get, PLACES)]
    left_out = {*LEFT_OUT, *(group.name for group in report.result.groups() if not group.is_kept)}
    yield from report.result.named_numbers()
    for group, statistic in report.statistics.items():
        if group in report.result.named_groups:
            continue
        if has_head_rows(group) and isinstance(statistic, Table):
            yield _table_leaf(statistic)
        elif isinstance(statistic, Tensors):
            for name, tensor in statistic.items():
                axes, values = _by_text(tensor, num_texts)
                if not axes:
                    yield OneColumn(f"{group}.{name}", *place), values.astype(np.float64)[:, None]
                elif (
                    not {group, name} & left_out and "layer" not in axes
                ):  # the table of heads has these means
                    yield _row_leaf(name, axes, values, place, rows)
        elif group not in left_out:
            for name, number in _single_numbers(group, statistic):
                yield OneColumn(name, *place), np.full((num_texts or 1, 1), number, dtype=np.float64)
    for name, tensor in report.tensors.items():
        axes, values = _by_text(tensor, num_texts)
        # if there is a table of heads, the tensor has the same numbers
        if axes == PLACES and not any(map(has_head_rows, report.statistics)):
            yield GridColumns(name, *values.shape[1:]), values.reshape(len(values), -1)


def _by_text(tensor: NamedTensor, num_texts: int | None) -> tuple[tuple[str, ...], np.ndarray]:
    """Return a tensor's axes for one text, and its values text by text."""
    if num_texts is None:
        return tensor.axes, tensor.values[None]
    assert (tensor.axes[0], len(tensor.values)) == ("batch", num_texts), tensor.axes
    return tensor.axes[1:], tensor.values


def _single_numbers(group: str, values: Numbers | Table) -> Iterator[tuple[str, Any]]:
    """Yield every number by its full name; the names of table rows and list items contain their index."""
    rows = (
        {group: values} if isinstance(values, Numbers) else {f"{group}.{i}": r for i, r in enumerate(values)}
    )
    stored = values.stored_columns() if isinstance(values, Records) else None
    for before, row in rows.items():
        for name, cell in row.items():
            if stored is not None and name not in stored:
                continue
            listed = {f".{i}": item for i, item in enumerate(cell)} if isinstance(cell, list) else {"": cell}
            for place, item in listed.items():
                if not isinstance(item, str):
                    yield f"{before}.{name}{place}", np.nan if item is None else item


def _row_leaf(
    name: str, axes: tuple[str, ...], values: np.ndarray, place: Sequence[int | None], rows: bool
) -> Leaf:
    """Return a row statistic: the summaries of each head, then with `rows` every row."""
    count = len(values)
    layer, head = place
    num_heads = values.shape[1 + axes.index("head")] if "head" in axes else None
    by_head = values[:, None] if num_heads is None else np.moveaxis(values, 1 + axes.index("head"), 1)
    num_batches = by_head.shape[2] if "batch" in axes else None
    # The last axis is contiguous, so that sums have the same order for one text and for several.
    flat = np.ascontiguousarray(by_head, dtype=np.float64).reshape(count, num_heads or 1, -1)
    numbers = [_summaries(flat).reshape(count, -1), *([flat.reshape(count, -1)] if rows else [])]
    num_tokens = flat.shape[2] // (num_batches or 1) if rows else 0
    return RowColumns(name, layer, head, num_heads, num_batches, num_tokens), np.concatenate(numbers, axis=1)


@lru_cache(maxsize=256)
def _number_names(names: tuple[str, ...], types: tuple[type, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for name, number_type in zip(names, types, strict=True)
        if name not in (*PLACES, *LOOKED_AT) and issubclass(number_type, int | float)
    )


def _table_leaf(heads: Table) -> Leaf:
    """Return the values of a head table outside surveys."""
    shape: list[Any] = []
    numbers: list[Any] = []
    stored = (
        [name for name in heads.stored_columns() if name not in PLACES]
        if isinstance(heads, Records)
        else None
    )
    stacks = {str(row["stack"]) for row in heads if "stack" in row}
    for row in heads:
        names = _number_names(tuple(row), tuple(map(type, row.values()))) if stored is None else tuple(stored)
        prefix = SurveyNumber(str(row["stack"]), "").name(has_stacks=len(stacks) > 1)
        shape.append((row["layer"], row["head"], prefix, names))
        numbers += [row[name] for name in names]
    return HeadColumns(tuple(shape)), np.array([numbers], dtype=np.float64)


def _summaries(flat: np.ndarray) -> np.ndarray:
    """Return mean, minimum and maximum over the last axis without missing numbers; NaN if all are missing."""
    is_number = np.isfinite(flat)
    if is_number.all():
        return np.stack([flat.mean(axis=-1), flat.min(axis=-1), flat.max(axis=-1)], axis=-1)
    counts = is_number.sum(axis=-1)
    sums = np.where(is_number, flat, 0.0).sum(axis=-1)
    means = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    least = np.where(is_number, flat, np.inf).min(axis=-1)
    most = np.where(is_number, flat, -np.inf).max(axis=-1)
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
    """A name, a comparison, a number to compare with (or None), and the value as the user typed it."""

    name: str
    operator: str
    number: float | None
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.text}"

    def holds(self, value: Any) -> Any:
        """Return True if the condition holds for a value, or an array of Booleans for an array of numbers.

        A missing number meets no condition.
        """
        compare = OPERATORS[self.operator]
        if self.number is not None and not isinstance(value, str):
            if value is None or isinstance(value, bool):
                return False
            if isinstance(value, np.ndarray):
                # A store may round to float32, so a stored 0.1 must still equal 0.1.
                value = np.where(value == _nearest_single(self.number), self.number, value)
            # NaN != x is true in floating point; here a missing number meets no condition.
            return compare(value, self.number) & (value == value)
        if self.operator not in FOR_TEXTS:
            return False
        # As in YAML, True is true.
        return compare(_text(value), self.text.lower() if isinstance(value, bool) else self.text)


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


def _where(column: StoredColumn) -> str:
    """Return ` in 5:1` for a model's head, ` in head 4 in token 2` for a single layer, or an empty string."""
    is_head = column.layer is not None and column.head is not None
    head = f" in {column.layer}:{column.head}" if is_head else ""
    indices = [(axis, getattr(column, axis)) for axis in StoredColumn._fields[3 if is_head else 1 :]]
    return head + "".join(f" in {axis} {index}" for axis, index in indices if index is not None)


def parse_conditions(texts: Iterable[str], flag: str, *, numbers_only: bool) -> tuple[Condition, ...]:
    """Parse conditions such as `entropy.mean < 2`. Raises UserError for invalid ones."""
    conditions, errors = [], []
    for text in texts:
        match = FORM.fullmatch(text)
        value = _number(match[3], match[1]) if match else None
        if match is None or not match[3]:
            errors.append(f"{flag} {text!r}: must be a name, one of {' '.join(OPERATORS)}, and a value")
        elif value is None and numbers_only:
            errors.append(f"{flag} {text!r}: must end in a number (got {match[3]})")
        elif value is None and match[2] not in FOR_TEXTS:
            errors.append(f"{flag} {text!r}: must compare a text with = or != (got {match[2]})")
        else:
            conditions.append(Condition(match[1], match[2], value, match[3]))
    if errors:
        raise UserError(*errors)
    return tuple(conditions)


NAMES_A_SOURCE = "source.first"
"""The statistic that holds the number of a source; conditions may give the source's name instead."""


def _number(text: str, name: str) -> float | None:
    if name == NAMES_A_SOURCE and (source := source_number(text)) is not None:
        return float(source)
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None


def listed(names: Iterable[str]) -> str:
    """List names for an error message, grouped by ending: `entropy, distance (.mean .min .max)`."""
    endings: dict[str, list[str]] = {}
    for name in names:
        stem, dot, ending = name.rpartition(".")
        endings.setdefault(stem or name, []).append(dot + ending if stem else "")
    stems: dict[tuple[str, ...], list[str]] = {}
    for stem, stem_endings in endings.items():
        stems.setdefault(tuple(stem_endings), []).append(stem)
    return "; ".join(", ".join(alike) + _endings(*stem_endings) for stem_endings, alike in stems.items())


def _endings(*endings: str) -> str:
    return f" ({' '.join(ending or 'bare' for ending in endings)})" if any(endings) else ""


def as_declared(name: str) -> str:
    """Return a statistic as a Spec declares it: with N for a list index, without a survey head's stack."""
    return NUMBER.sub("N", stack_and_name(name)[1])


def stored_names(kind: type[Result], left_out: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the row and key statistics that a store keeps for a kind of result, and its other numbers.

    Tensors without declared columns are row statistics, whose names are declared in the Spec.
    """
    rows: list[str] = []
    singles: list[str] = []
    for group in kind.groups():
        is_left_out = group.name in left_out and not group.is_bare_alone
        if not group.is_kept or is_left_out or group.kind is None:
            continue
        columns = [column for name, column in group.kind.columns.items() if name not in left_out]
        names = [
            f"{column.name}.N" if column.is_list else column.name
            for column in columns
            if column.is_list or (column.is_number and column.is_kept)
        ]
        if group.axes:
            rows += names
        elif has_head_rows(group.name) and not group.is_single:
            singles += [name for name in names if name not in PLACES]
        else:
            alone = [group.name] if group.is_single or group.is_bare_alone else []
            several = [] if group.is_single else [f"{group.name}.N"]
            for prefix in {*alone, *several} - {*left_out}:
                singles += in_group(prefix, *names)
    return rows, singles


def declared_statistics(spec: Spec, *, rows: bool = False) -> Iterator[str]:
    """Yield the names of the statistics of runs with these settings; with `rows`, also those of each row."""
    kind = KINDS.get(spec.result_kind())
    row_names, singles = [*spec.row_statistics()], [*spec.single_statistics()]
    if kind is not None:
        kind_rows, singles = stored_names(kind, spec.unmeasured())
        row_names += kind_rows
    yield from singles
    for row in row_names:
        yield from (f"{row}.{how}" for how in SUMMARIES)
        if rows:
            yield row


def refuse_unknown(
    conditions: Sequence[Condition], specs: Iterable[Spec], *, rows: bool, flag: str = "--expect"
) -> None:
    """Raise UserError for statistics that no experiment will have; with `rows`, the store keeps every row."""
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


def refuse_unmeasured(conditions: Sequence[Condition], known: Sequence[str], flag: str) -> None:
    """Raise UserError for conditions on unknown statistics of heads."""
    lines = [
        f"{flag} '{each}': no head has {each.name}{nearest(each.name, known)}; known: {listed(known)}"
        for each in conditions
        if (number := survey_number(each.name)) is None or number.statistic not in known
    ]
    if lines:
        raise UserError(*lines)


def _excess(condition: Condition, values: np.ndarray) -> np.ndarray:
    """Return how far values miss a condition; NaN, a missing number, counts as the farthest."""
    assert condition.number is not None, condition
    above = values - condition.number
    return {"<": above, "<=": above, ">": -above, ">=": -above}.get(condition.operator, abs(above))


class Expectations:
    """The conditions that every run must meet, and the columns that were checked."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = conditions
        self._places: dict[StoredColumns, dict[Condition, list[int]]] = {}

    def broken(self, columns: StoredColumns, values: np.ndarray) -> list[str]:
        """Return a line for each expectation that fails, with the worst number and its place.

        For example: `expected entropy < 2: got 2.3 in 5:1 (and in 3 more)`.
        """
        if columns not in self._places:
            self._places[columns] = {
                condition: [i for i, column in enumerate(columns) if column.statistic == condition.name]
                for condition in self.conditions
            }
        lines = []
        for condition, places in self._places[columns].items():
            numbers = values[places]
            wrong = np.flatnonzero(~np.asarray(condition.holds(numbers), dtype=bool))
            if len(wrong):
                worst = wrong[int(_excess(condition, numbers[wrong]).argmax())]
                column, value = columns[places[worst]], float(numbers[worst])
                where = _where(column)
                more = f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                number = "no number" if np.isnan(value) else repr(value)
                lines.append(f"expected {condition}: got {number}{where}{more}")
        return lines

    def unmet(self, known: Collection[str] = (), others: str = "") -> list[str]:
        """Return a line for each condition whose statistic no run had.

        A condition that checks nothing must fail. `known` are names to suggest instead, and `others` is a
        hint about where to find more names.
        """
        names = {column.statistic for columns in self._places for column in columns}
        instead = f"; known: {listed(known)}{others}" if known else ""
        return [
            f"--expect '{condition}': no run has {condition.name}"
            f"{nearest(condition.name, [*known, *names])}{instead}"
            for condition in self.conditions
            if condition.name not in names
        ]
