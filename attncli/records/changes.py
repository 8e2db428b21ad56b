"""What changes from one text to another: which heads look elsewhere, and what comes next instead."""

from dataclasses import dataclass

import numpy as np

from attncli.records.columns import Record, Records, Result, column, group


@dataclass(frozen=True)
class Alignment:
    """The tokens of both sides in one order, and the position of each on either side; -1 for none.

    A token that replaced another one is named as `cat → dog`.
    """

    tokens: tuple[str, ...]
    a: np.ndarray
    b: np.ndarray

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

    heads: Records[HeadChange] = group()
    predictions: Records[TokenChange] | None = group(is_needed=False)
    alignment: Alignment | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_aligned(self) -> bool:
        """Whether tokens of both texts correspond in some stack."""
        return any(head.mean_jensen_shannon is not None for head in self.heads)
