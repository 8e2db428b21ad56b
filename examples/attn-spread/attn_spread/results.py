"""How far apart the keys are that heads look at."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class HeadSpread(Record):
    """A head, and the standard deviation of the position of the key, mean over the queries."""

    stack: str
    layer: int
    head: int
    spread: float = column(unit="tokens")


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadSpreads(Result):
    """The heads, those that look furthest first."""

    heads: Records[HeadSpread] = group()
