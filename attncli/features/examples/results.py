"""Where a statistic of one head is strongest, weakest and typical, over many texts."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, number


class HeadExample(Record):
    """A text and the query in it whose row is the strongest, weakest or most typical of the text.

    `text` is its id, or its line; `rank` counts the examples of a kind from 0. `key` is what the query looks
    at most.
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
    """A token of an example's text as people write it, and the weight of the example's query on it."""

    kind: str
    rank: int
    text: str = column(is_needed=False)
    position: int = column(is_needed=False)
    token: str
    weight: float


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadExamples(Result):
    """A statistic of a head: its mean over texts with a 95 % interval, its median over rows, and examples.

    `rows` has one row per example, `tokens` one per token of each of their texts. Where no text has such a
    row, as of one token without another before it, there are none, and neither mean nor median.
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
        """The tokens of the text of an example."""
        return self.tokens.where(lambda token: (token.kind, token.rank) == (example.kind, example.rank))
