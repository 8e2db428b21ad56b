"""The columns of a store, and how it names the numbers of a survey of heads:
[STACK.][without_first.]STATISTIC[.rows or .even].
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from attncli.core.names import WITHOUT_FIRST


class StoredColumn(NamedTuple):
    """What one value is; `token` is the query of a row statistic, or the key of received_mass."""

    statistic: str
    layer: int | None = None
    head: int | None = None
    batch: int | None = None
    token: int | None = None


StoredColumns = tuple[StoredColumn, ...]

PREFIXES = {"encoder": "encoder.self.", "decoder": "decoder.self.", "cross": "decoder.cross.", "self": ""}
"""What the names of each stack begin with in a model of several stacks; in others it is nothing.

In a recording self-attention has no name of its own beside cross-attention.
"""
OF_REST, ROWS, EVEN = f"{WITHOUT_FIRST}.", ".rows", ".even"
OF_LINEAR = "linear."
"""What the names begin with that heads of layers without a softmax have."""


UNSHOWN = "unshown"
"""Beside the versions that computed a run: which layers of its model are not in it."""


def with_unshown(sentence: str) -> dict[str, str]:
    """What is kept of the sentence that names the layers that are not shown; nothing where all are."""
    return {UNSHOWN: sentence} if sentence else {}


class SurveyNumber(NamedTuple):
    """A number of a survey: of each head of a stack, or of the stack.

    `is_of_rest` says that it is of the weights without the first key, `counts_rows` that it is the number of
    rows that the statistic of each head is a mean of, `is_even` that it is the statistic of even weights.
    """

    stack: str
    statistic: str
    is_of_rest: bool = False
    counts_rows: bool = False
    is_even: bool = False

    def name(self, *, has_stacks: bool) -> str:
        """What a store calls it, in a survey of several stacks or of one."""
        stack, rest = PREFIXES[self.stack] if has_stacks else "", OF_REST if self.is_of_rest else ""
        about = ROWS if self.counts_rows else EVEN if self.is_even else ""
        return f"{stack}{rest}{self.statistic}{about}"


def survey_number(name: str) -> SurveyNumber | None:
    """What a store calls so; None for what is no number of a survey, as model.sink_rate.

    The stack is `self` in a model of one stack.
    """
    stack, rest = stack_and_name(name)
    statistic = rest.removeprefix(OF_REST).removesuffix(ROWS).removesuffix(EVEN)
    if "." in statistic:
        return None
    return SurveyNumber(
        stack, statistic, rest.startswith(OF_REST), rest.endswith(ROWS), is_even=rest.endswith(EVEN)
    )


def stack_and_name(name: str) -> tuple[str, str]:
    """The stack of a number of a survey, and its name without that."""
    stack = next(stack for stack, prefix in PREFIXES.items() if name.startswith(prefix))
    return stack, name.removeprefix(PREFIXES[stack])


@lru_cache(maxsize=8)
def columns_of_features(
    features: Sequence[tuple[str, int, int, str]], others: Sequence[str]
) -> StoredColumns:
    """The columns of statistics of heads (stack, layer, head, statistic), and of other numbers of a text."""
    has_stacks = len({stack for stack, *_ in features}) > 1
    of_heads = (
        StoredColumn(SurveyNumber(stack, statistic).name(has_stacks=has_stacks), layer, head)
        for stack, layer, head, statistic in features
    )
    return (*of_heads, *map(StoredColumn, others))


class SurveyColumn(NamedTuple):
    """A column of a store that has a number of a survey: its place, and of which head it is, if of one."""

    number: SurveyNumber
    place: int
    layer: int | None
    head: int | None


class SurveyColumns(NamedTuple):
    """The columns of a survey: of all weights, of those without the first key, and, with their places, of
    layers without a softmax.
    """

    of_all: Sequence[SurveyColumn]
    of_rest: Sequence[SurveyColumn]
    of_linear: Sequence[tuple[int, StoredColumn]]


@lru_cache(maxsize=64)
def survey_columns_of(columns: StoredColumns) -> SurveyColumns:
    """Those among the columns of a store that have numbers of a survey."""
    known = [
        SurveyColumn(number, place, column.layer, column.head)
        for place, column in enumerate(columns)
        if (number := survey_number(column.statistic)) is not None
    ]
    return SurveyColumns(
        [column for column in known if not column.number.is_of_rest],
        [column for column in known if column.number.is_of_rest],
        [
            (place, column)
            for place, column in enumerate(columns)
            if column.statistic.startswith(OF_LINEAR) and column.head is not None
        ],
    )
