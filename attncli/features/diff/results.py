"""Results of `attn diff`: changes in weights, statistics, heads and predictions between reports or texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.meanings import Meaning
from attncli.records.values import NamedTensor, Tensors, are_equal

UNMAPPED = "no map on one side or on both: use --show statistics to compare statistics."
"""The end of a note on heads that are compared only by their statistics."""


@dataclass(frozen=True)
class Alignment:
    """The tokens of both sides in a single order, with their positions on each side (-1 if missing there).

    A token that replaces another is written as `cat → dog`.
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
        """The number of tokens that both sides have."""
        return int(((self.a >= 0) & (self.b >= 0)).sum())


SIDES = {
    "a": Meaning("Value in A", label="A"),
    "b": Meaning("Value in B", label="B"),
    "difference": Meaning("B minus A"),
    "pattern_a": Meaning("Pattern of the head in A", label="pattern in A"),
    "pattern_b": Meaning("Pattern of the head in B", label="pattern in B"),
    "mean_jensen_shannon": Meaning("Mean Jensen-Shannon distance of the head's rows in A and B"),
    "max_jensen_shannon": Meaning("Largest Jensen-Shannon distance of the head's rows in A and B"),
} | {
    f"{name}_{side.lower()}{end}": Meaning(f"{about} in {side}", label=f"{label} in {side}")
    for side in "AB"
    for name, end, label, about in (
        ("query", "", "query", "Position of the query that moved furthest"),
        ("query", "_token", "query token", "Token of this query"),
        ("key", "", "key", "Position of the key with the largest weight in this query's row"),
        ("key", "_token", "key token", "Token of this key"),
        ("weight", "", "weight", "Weight of the query on this key"),
        ("lower", "", "lower end", "Lower end of the 95 % interval"),
        ("upper", "", "upper end", "Upper end of the 95 % interval"),
    )
}
"""Columns for two sides, A and B."""


class HeadChange(Record, shared=SIDES):
    """The movement of a head's rows, and the keys with the most weight in the row that moved furthest.

    If the texts have no tokens in common, there are no distances, and the queries are the last tokens.
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
    statistic: str = column(about="Statistic of a pattern that changed most")
    a: float | None
    b: float | None
    difference: float | None = column(is_needed=False)


class TokenChange(Record, shared=SIDES):
    """A possible next token, with its probability on either side."""

    token_id: int = column(about="Number of the token in the vocabulary", is_needed=False)
    token: str = column(about="The token")
    a: float | None
    b: float | None
    difference: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class TextDifferences(Result):
    """Text B compared with text A in one model; `alignment` aligns their tokens.

    `heads` has one row per head, sorted by change, largest first: by the distance between rows if the texts
    have tokens in common, and otherwise by the statistic. `predictions` are the tokens whose probability at
    the end, or at the mask, changed most; the table is empty if the model does not predict tokens.
    """

    title: ClassVar[str] = "A and B compared"
    compares: ClassVar[bool] = True

    heads: Records[HeadChange] = group(label="Heads")
    predictions: Records[TokenChange] | None = group(label="Predictions", is_needed=False)
    alignment: Alignment | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_aligned(self) -> bool:
        """True if the texts have tokens in common in at least one stack."""
        return any(head.mean_jensen_shannon is not None for head in self.heads)


class MovedRow(Record):
    """A row of weights that moved, and the keys that gained and lost the most weight.

    There is a column for the query and for each other axis of the weights, such as layer and head.
    """

    jensen_shannon: float = column(about="Jensen-Shannon distance of the two rows")
    gained_key: int = column(about="Position of the key that gained the most weight")
    gained: float = column(about="Weight that it gained")
    lost_key: int = column(about="Position of the key that lost the most weight")
    lost: float = column(about="Change of its weight")


class MovedHead(Record, shared=SIDES):
    """The mean and largest distance between the rows of a head, or of a sequence."""

    batch: int = column(is_needed=False)
    layer: int = column(is_needed=False)
    head: int = column(is_needed=False)
    mean_jensen_shannon: float
    max_jensen_shannon: float


class HeadInterval(Record):
    """The mean of a head statistic over many texts, with its 95 % interval; for pairs, also their names."""

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
        """The head's stack, layer and number."""
        return self.stack, self.layer, self.head


class ChangedStatistic(Record, shared=SIDES):
    """A head statistic whose 95 % intervals do not overlap, and the head's pattern on either side."""

    stack: str
    layer: int
    head: int
    statistic: str = column(about="Statistic of the head")
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
    """B - A for a head, with one column per statistic of both sides (None if a side has no number)."""

    layer: int | None
    head: int | None
    stack: str | None
    kind: str | None = column(is_needed=False)


class StatisticPair(Record, shared=SIDES):
    """A number on both sides."""

    statistic: str = column(about="Full name of the number, such as scores.variance")
    a: float
    b: float
    difference: float


@dataclass(frozen=True, kw_only=True, repr=False)
class ReportDifferences(Result):
    """Report B compared with report A; the rows and heads that moved furthest come first.

    If both sides have weights, `rows` has the distance of each row of weights, and `difference` the
    difference of the weights. `changed_heads` compares surveys over texts, the largest change first.
    """

    title: ClassVar[str] = "A and B compared"
    compares: ClassVar[bool] = True

    difference: NamedTensor | None = tensor(num_axes=2)
    table_titles: ClassVar[Mapping[str, str]] = {
        "by_head": "heads whose rows moved furthest",
        "changed_heads": "heads that changed beyond their intervals",
        "changed_rows": "rows that moved furthest",
        "heads_difference": "head statistics, B minus A",
        "side_by_side": "statistics of A and B",
    }
    rows: Tensors | None = group(is_needed=False)
    changed_rows: Records[MovedRow] | None = group(label="Rows that moved furthest", is_needed=False)
    by_head: Records[MovedHead] | None = group(label="Heads whose rows moved furthest", is_needed=False)
    changed_heads: Records[ChangedStatistic] | None = group(
        label="Heads that changed beyond their intervals", is_needed=False
    )
    heads_difference: Records[HeadDifference] | None = group(
        label="Head statistics, B minus A", is_needed=False
    )
    side_by_side: Records[StatisticPair] | None = group(label="Statistics of A and B", is_needed=False)
