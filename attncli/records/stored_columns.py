"""The columns of a store, a result's values in these columns, and the names of a head survey's numbers.

The name of a survey's number is [STACK.][without_first.]STATISTIC[.rows or .even].
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from attncli.core.names import WITHOUT_FIRST


class StoredColumn(NamedTuple):
    """The meaning of one value; `token` is the query of a row statistic, or the key for received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


StoredColumns = tuple[StoredColumn, ...]


class ColumnsShape(Protocol):
    """The hashable shape that produces some columns: reports with equal shapes share their columns."""

    def columns(self) -> Iterator[StoredColumn]:
        """Yield the columns."""

    def __hash__(self) -> int: ...


ColumnsShapes = tuple[ColumnsShape, ...]

Leaf = tuple[ColumnsShape, npt.NDArray[np.float64]]
"""The shape of some columns, and their values (text, column)."""


@dataclass(frozen=True, slots=True)
class OneColumn:
    """The shape of a single number's column."""

    name: str
    layer: int | None = None
    head: int | None = None

    def columns(self) -> Iterator[StoredColumn]:
        """Yield the column."""
        yield StoredColumn(self.name, self.layer, self.head)


@dataclass(frozen=True, slots=True)
class HeadColumns:
    """The shape of heads' columns: for each head, its layer, number, a prefix, and its statistics' names."""

    heads: tuple[tuple[int, int, str, tuple[str, ...]], ...]

    def columns(self) -> Iterator[StoredColumn]:
        """Yield the columns of each head."""
        for layer, head, prefix, names in self.heads:
            yield from (StoredColumn(prefix + name, layer, head) for name in names)


class ColumnsOfShapes(tuple[StoredColumn, ...]):
    """Columns that are pickled as the shapes that produce them, because a survey has thousands of columns."""

    shapes: ColumnsShapes

    def __reduce__(self) -> tuple[Callable[[ColumnsShapes], StoredColumns], tuple[ColumnsShapes]]:
        return columns_from_shapes, (self.shapes,)


@lru_cache(maxsize=256)
def columns_from_shapes(shapes: ColumnsShapes) -> StoredColumns:
    """Return the columns of a report; reports with equal shapes share one tuple object."""
    columns = ColumnsOfShapes(column for shape in shapes for column in shape.columns())
    columns.shapes = shapes
    return columns


class ValueTable(NamedTuple):
    """The values of several texts, one float64 row per text, with NaN for a missing number."""

    columns: StoredColumns
    values: npt.NDArray[np.float64]


def side_by_side(leaves: Iterable[Leaf], num_texts: int) -> ValueTable:
    """Return the leaves' columns and values side by side, with NaN for infinite numbers."""
    shapes, values = [], [np.empty((num_texts, 0))]
    for shape, numbers in leaves:
        shapes.append(shape)
        values.append(numbers)
    table = np.concatenate(values, axis=1)
    table[~np.isfinite(table)] = np.nan
    return ValueTable(columns_from_shapes(tuple(shapes)), table)


PREFIXES = {"encoder": "encoder.self.", "decoder": "decoder.self.", "cross": "decoder.cross.", "self": ""}
"""The prefix of the names of each stack in a model with several stacks; with one stack it is empty.

In a recording, self-attention beside cross-attention has no prefix either.
"""
WITHOUT_FIRST_PREFIX, ROWS, EVEN = f"{WITHOUT_FIRST}.", ".rows", ".even"
LINEAR_PREFIX = "linear."
"""The prefix of heads of layers without a softmax."""


UNSHOWN = "unshown"
"""The key, among the versions that computed a run, of the layers of its model that are missing in it."""


def with_unshown(sentence: str) -> dict[str, str]:
    """Return the sentence on missing layers as an environment entry, or nothing if the sentence is empty."""
    return {UNSHOWN: sentence} if sentence else {}


class SurveyNumber(NamedTuple):
    """A number of a survey, for each head of a stack or for the whole stack.

    `without_first`: it belongs to the weights without the first key. `counts_rows`: it is the number of rows
    over which the heads' statistic is a mean. `is_even`: it is the statistic that even weights would have.
    """

    stack: str
    statistic: str
    without_first: bool = False
    counts_rows: bool = False
    is_even: bool = False

    def name(self, *, has_stacks: bool) -> str:
        """Return the number's name in a store, for a survey of several stacks or of one stack."""
        stack = PREFIXES[self.stack] if has_stacks else ""
        prefix = WITHOUT_FIRST_PREFIX if self.without_first else ""
        suffix = ROWS if self.counts_rows else EVEN if self.is_even else ""
        return f"{stack}{prefix}{self.statistic}{suffix}"


def survey_number(name: str) -> SurveyNumber | None:
    """Parse a name in a store; return None for names outside surveys, such as model.sink_rate.

    The stack is `self` in a model with one stack.
    """
    stack, name = stack_and_name(name)
    statistic = name.removeprefix(WITHOUT_FIRST_PREFIX).removesuffix(ROWS).removesuffix(EVEN)
    if "." in statistic:
        return None
    return SurveyNumber(
        stack,
        statistic,
        name.startswith(WITHOUT_FIRST_PREFIX),
        name.endswith(ROWS),
        is_even=name.endswith(EVEN),
    )


def stack_and_name(name: str) -> tuple[str, str]:
    """Split the name of a stack's number into the stack and the rest."""
    stack = next(stack for stack, prefix in PREFIXES.items() if name.startswith(prefix))
    return stack, name.removeprefix(PREFIXES[stack])


@lru_cache(maxsize=8)
def feature_columns(features: Sequence[tuple[str, int, int, str]], others: Sequence[str]) -> StoredColumns:
    """Return the columns of head statistics (stack, layer, head, statistic), then the other columns."""
    has_stacks = len({stack for stack, *_ in features}) > 1
    head_columns = (
        StoredColumn(SurveyNumber(stack, statistic).name(has_stacks=has_stacks), layer, head)
        for stack, layer, head, statistic in features
    )
    return (*head_columns, *map(StoredColumn, others))


class SurveyColumn(NamedTuple):
    """A column with a number of a survey, its index, and its layer and head if it belongs to a head."""

    number: SurveyNumber
    place: int
    layer: int | None
    head: int | None


class SurveyColumns(NamedTuple):
    """The columns of a survey: with all weights, without the first key, and for layers without a softmax.

    The columns for layers without a softmax come with their indices.
    """

    all_weights: Sequence[SurveyColumn]
    without_first: Sequence[SurveyColumn]
    linear: Sequence[tuple[int, StoredColumn]]


@lru_cache(maxsize=64)
def parse_survey_columns(columns: StoredColumns) -> SurveyColumns:
    """Return the store's columns that hold numbers of a survey."""
    survey_columns = [
        SurveyColumn(number, place, column.layer, column.head)
        for place, column in enumerate(columns)
        if (number := survey_number(column.statistic)) is not None
    ]
    return SurveyColumns(
        [column for column in survey_columns if not column.number.without_first],
        [column for column in survey_columns if column.number.without_first],
        [
            (place, column)
            for place, column in enumerate(columns)
            if column.statistic.startswith(LINEAR_PREFIX) and column.head is not None
        ],
    )
