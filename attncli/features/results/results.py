"""What a store of many runs holds, in short: statistics by group, and the runs that failed."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group


class GroupSummary(Record):
    """A statistic over the runs of a group; `std` is unbiased, None for one value.

    What the groups are by, a setting or a place as layer and head, is a column each.
    """

    statistic: str
    count: int = column(is_needed=False)
    mean: float
    std: float | None = column(is_needed=False)
    min: float = column(is_needed=False)
    max: float = column(is_needed=False)


class RunFailure(Record):
    """A run that failed: its number, the id of its sentence, where it came from, and the error."""

    run: str
    id: str
    plan: int | None = column(is_needed=False)
    source: str
    error: str


@dataclass(frozen=True, kw_only=True, repr=False)
class StoreSummary(Result):
    """The summary of a store, the groups of a statistic one after the other, and the runs that failed."""

    is_of_store: ClassVar[bool] = True
    summary: Records[GroupSummary] = group()
    failed: Records[RunFailure] | None = group(is_needed=False)
