"""The texts in which a statistic of one head is strongest, weakest and typical."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number


class HeadExample(Record):
    """A text, and the query in it with the strongest, weakest or most typical row.

    `text` is the text's id or line; `rank` counts the examples of a kind from 0. `key` has the query's
    largest weight.
    """

    kind: str
    rank: int
    text: str
    value: float
    query: int
    query_token: str
    key: int
    key_token: str
    key_weight: float


class ExampleToken(Record):
    """A token of an example's text in readable form, and the weight of the example's query on it."""

    kind: str
    rank: int
    text: str = column(is_needed=False)
    position: int = column(is_needed=False)
    token: str
    weight: float


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadExamples(Result):
    """A statistic of a head: its mean over texts with a 95 % interval, its median over rows, and examples.

    `rows` has one row per example, and `tokens` has one per token in each example's text. If no text has a
    row with the statistic, both are empty, and the mean and median are None.
    """

    rows: Records[HeadExample] = group("examples", is_kept=False, may_be_empty=True)
    num_texts: int = number("head")
    mean: float | None = number("head")
    lower: float | None = number("head")
    upper: float | None = number("head")
    median: float | None = number("head")
    tokens: Records[ExampleToken] = group("example_weights", is_kept=False, may_be_empty=True)
    notes: tuple[str, ...] = ()

    def tokens_of(self, example: HeadExample) -> Records[ExampleToken]:
        """Return the tokens of an example's text."""
        return self.tokens.where(lambda token: (token.kind, token.rank) == (example.kind, example.rank))
