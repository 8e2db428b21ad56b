"""The summary of a store with many runs: statistics by group, and the failed runs."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group


class GroupSummary(Record):
    """A statistic over the runs in a group; `std` is unbiased, or None for a single value.

    Each setting, layer or head that defines the groups adds a column.
    """

    statistic: str
    count: int = column(is_needed=False)
    mean: float
    std: float | None = column(is_needed=False)
    min: float = column(is_needed=False)
    max: float = column(is_needed=False)


class RunFailure(Record):
    """A failed run: its number, its sentence's id, its source, and the error."""

    run: str
    id: str
    plan: int | None = column(is_needed=False)
    source: str
    error: str


@dataclass(frozen=True, kw_only=True, repr=False)
class StoreSummary(Result):
    """The summary of a store, with the groups of a statistic next to each other, and the failed runs."""

    summarises_runs: ClassVar[bool] = True
    summary: Records[GroupSummary] = group()
    failed: Records[RunFailure] | None = group(is_needed=False)
