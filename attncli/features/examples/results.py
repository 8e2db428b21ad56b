"""The texts in which a statistic of one head is strongest, weakest and typical."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number
from attncli.records.meanings import LOOKED_AT


class HeadExample(Record, shared=LOOKED_AT):
    """A text, and the query in it with the strongest, weakest or most typical row."""

    kind: str = column(about="Kind of the example: strongest, weakest or typical")
    rank: int = column(about="Rank among the examples of the kind, counted from 0")
    text: str = column(about="Number or id of the text")
    value: float = column(about="The statistic of the row")
    query: int
    query_token: str
    key: int
    key_token: str
    key_weight: float


class ExampleToken(Record):
    """A token of an example's text, in readable form."""

    kind: str = column(about="Kind of the example: strongest, weakest or typical")
    rank: int = column(about="Rank among the examples of the kind, counted from 0")
    text: str = column(about="Number or id of the text", is_needed=False)
    position: int = column(about="Position of the token", is_needed=False)
    token: str = column(about="The token")
    weight: float = column(about="Weight of the example's query on the token")


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadExamples(Result):
    """A statistic of a head: its mean over texts with a 95 % interval, its median over rows, and examples.

    `rows` has one row per example, and `tokens` has one per token in each example's text. If no text has a
    row with the statistic, both are empty, and the mean and median are None.
    """

    rows: Records[HeadExample] = group("examples", label="Examples", is_kept=False, may_be_empty=True)
    num_texts: int = number("head", label="texts", about="Number of texts")
    mean: float | None = number("head", about="Mean over the texts")
    lower: float | None = number("head", about="Lower end of the 95 % interval of the mean")
    upper: float | None = number("head", about="Upper end of the 95 % interval of the mean")
    median: float | None = number("head", about="Median over the rows")
    tokens: Records[ExampleToken] = group(
        "example_weights", label="Tokens of the examples", is_kept=False, may_be_empty=True
    )
    notes: tuple[str, ...] = ()

    def tokens_of(self, example: HeadExample) -> Records[ExampleToken]:
        """Return the tokens of an example's text."""
        return self.tokens.where(lambda token: (token.kind, token.rank) == (example.kind, example.rank))
