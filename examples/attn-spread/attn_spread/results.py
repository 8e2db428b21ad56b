"""Results of `attn spread`."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class HeadSpread(Record):
    """A head and the standard deviation of its key positions, mean over queries."""

    stack: str
    layer: int
    head: int
    spread: float = column(unit="tokens")


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadSpreads(Result):
    """The heads, the largest spread first."""

    heads: Records[HeadSpread] = group()
