"""Predictions of the next token."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class NextToken(Record):
    """A candidate for the next token."""

    token_id: int = column(about="Number of the token in the vocabulary")
    token: str = column(about="The token")
    probability: float = column(about="Probability of the token with all heads")
    without: float | None = column(
        about="Probability of the token without the removed heads", is_needed=False
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class NextTokens(Result):
    """The most likely tokens after a text, likeliest first, with all heads or without some of them."""

    tokens: Records[NextToken] = group("next", label="Likeliest next tokens")
