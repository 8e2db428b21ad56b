"""The tokens that a model expects after a text."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class NextToken(Record):
    """A token that may come next, its probability, and that without some heads, where those are named."""

    token_id: int
    token: str
    probability: float
    without: float | None = column(is_needed=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class NextTokens(Result):
    """What a model expects after a text, the likeliest first, with all heads or without some."""

    tokens: Records[NextToken] = group("next")
