"""What changes from one report, or one text, to another: weights, statistics, heads, what comes next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import NamedTensor, Tensors, are_equal

UNMAPPED = "no map on both sides: --show statistics compares them."
"""What a note says of heads that are compared by their statistics alone."""


@dataclass(frozen=True)
class Alignment:
    """The tokens of both sides in one order, and the position of each on either side; -1 for none.

    A token that replaced another one is named as `cat → dog`.
    """

    tokens: tuple[str, ...]
    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alignment) or self.tokens != other.tokens:
            return False
        return are_equal(self.a, other.a) and are_equal(self.b, other.b)

    @property
    def num_shared(self) -> int:
        """Places that both sides have."""
        return int(((self.a >= 0) & (self.b >= 0)).sum())


class HeadChange(Record):
    """How far the rows of a head moved, and what it looks at on either side where they moved furthest.

    Where tokens of both texts correspond, `mean_jensen_shannon` is the mean distance of their rows, and
    `query_a`, `query_b` are where it is largest; else these are the last tokens. `statistic` is the one that
    changed most, of those that name heads; `a` and `b` are its values.
    """

    layer: int
    module: str = column(is_needed=False)
    kind: str = column(is_needed=False)
    stack: str
    head: int
    pattern_a: str = column(is_needed=False)
    pattern_b: str = column(is_needed=False)
    mean_jensen_shannon: float | None
    max_jensen_shannon: float | None = column(is_needed=False)
    query_a: int
    query_a_token: str
    key_a: int
    key_a_token: str
    weight_a: float | None
    query_b: int
    query_b_token: str
    key_b: int
    key_b_token: str
    weight_b: float | None
    statistic: str
    a: float | None
    b: float | None
    difference: float | None = column(is_needed=False)


class TokenChange(Record):
    """A next token, and its probability on either side."""

    token_id: int = column(is_needed=False)
    token: str
    a: float | None
    b: float | None
    difference: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class TextDifferences(Result):
    """Text B compared with text A, as one model reads them; `alignment` is that of their tokens.

    `heads` has one row per head, the one that changed most first: by the distance of rows where tokens of
    both texts correspond, else by the statistic. `predictions` are the tokens whose probability at the end
    changed most, or at the mask; none where the model has no head that predicts tokens.
    """

    title: ClassVar[str] = "A and B compared"
    compares: ClassVar[bool] = True

    heads: Records[HeadChange] = group()
    predictions: Records[TokenChange] | None = group(is_needed=False)
    alignment: Alignment | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_aligned(self) -> bool:
        """Whether tokens of both texts correspond in some stack."""
        return any(head.mean_jensen_shannon is not None for head in self.heads)


class MovedRow(Record):
    """A row of weights that moved: where it is, how far, and the keys that gained and lost most.

    Beside the query it has a column for each other axis of the weights, as layer and head.
    """

    jensen_shannon: float
    gained_key: int
    gained: float
    lost_key: int
    lost: float


class MovedHead(Record):
    """The mean and largest distance of the rows of a head, or of a sequence, on the two sides."""

    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    mean_jensen_shannon: float
    max_jensen_shannon: float


class HeadInterval(Record):
    """The mean of a statistic of a head over many texts, and its 95 % interval; of pairs their name."""

    stack: str
    layer: int
    head: int
    statistic: str
    mean: float | None
    lower: float | None
    upper: float | None
    relation: str | None = column(is_needed=False)
    measure: str | None = column(is_needed=False)

    @property
    def place(self) -> tuple[str, int, int]:
        """Which head it is of."""
        return self.stack, self.layer, self.head


class ChangedStatistic(Record):
    """A statistic of a head whose 95 % intervals do not overlap, and what the head does on either side."""

    stack: str
    layer: int
    head: int
    statistic: str
    a: float
    b: float
    difference: float
    lower_a: float
    upper_a: float
    lower_b: float
    upper_b: float
    pattern_a: str | None = column(is_needed=False)
    pattern_b: str | None = column(is_needed=False)


class HeadDifference(Record):
    """B - A of a head: a column for each statistic of both sides, None where one has no number."""

    layer: int | None
    head: int | None
    stack: str | None
    kind: str | None = column(is_needed=False)


class StatisticPair(Record):
    """A number that both sides have, by its full name, as `scores.variance`."""

    statistic: str
    a: float
    b: float
    difference: float


@dataclass(frozen=True, kw_only=True, repr=False)
class ReportDifferences(Result):
    """Report B compared with report A: the rows and heads that moved furthest first.

    `rows` has the distance of each row of weights, `difference` is that of the weights, where both have some.
    `changed_heads` are of surveys over texts, the largest change first.
    """

    title: ClassVar[str] = "A and B compared"
    compares: ClassVar[bool] = True

    difference: NamedTensor | None = tensor(num_axes=2)
    table_titles: ClassVar[Mapping[str, str]] = {
        "by_head": "the heads whose rows moved furthest",
        "changed_heads": "the heads that changed beyond their intervals",
        "changed_rows": "the rows that moved furthest",
        "heads_difference": "statistics of heads, B minus A",
        "side_by_side": "statistics of A and B",
    }
    rows: Tensors | None = group(is_needed=False)
    changed_rows: Records[MovedRow] | None = group(is_needed=False)
    by_head: Records[MovedHead] | None = group(is_needed=False)
    changed_heads: Records[ChangedStatistic] | None = group(is_needed=False)
    heads_difference: Records[HeadDifference] | None = group(is_needed=False)
    side_by_side: Records[StatisticPair] | None = group(is_needed=False)
