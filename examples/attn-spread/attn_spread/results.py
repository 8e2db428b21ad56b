"""Results of `attn spread`."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group


class HeadSpread(Record):
    """A head and the spread of its keys."""

    stack: str
    layer: int
    head: int
    spread: float = column(
        unit="tokens", about="Standard deviation of the head's key positions, mean over queries"
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class HeadSpreads(Result):
    """The heads, the largest spread first."""

    heads: Records[HeadSpread] = group()
