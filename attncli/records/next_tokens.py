"""Predictions of the next token."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class NextToken(Record):
    """A candidate for the next token: its probability, also without the removed heads if there are any."""

    token_id: int
    token: str
    probability: float
    without: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NextTokens(Result):
    """The most likely tokens after a text, likeliest first, with all heads or without some of them."""

    tokens: Records[NextToken] = group("next")
