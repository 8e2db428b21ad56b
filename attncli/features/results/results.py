"""The summary of a store with many runs: statistics by group, and the failed runs."""

from dataclasses import dataclass
from typing import ClassVar

from attncli.records.columns import Record, Records, Result, column, group


class GroupSummary(Record):
    """A statistic over the runs in a group.

    Each setting, layer or head that defines the groups adds a column.
    """

    statistic: str = column(about="Name of the statistic")
    count: int = column(about="Number of runs that have it", is_needed=False)
    mean: float = column(about="Mean over the runs")
    std: float | None = column(
        label="standard deviation",
        about="Unbiased standard deviation over the runs; none for a single value",
        is_needed=False,
    )
    min: float = column(about="Smallest value", is_needed=False)
    max: float = column(about="Largest value", is_needed=False)


class RunFailure(Record):
    """A failed run."""

    run: str = column(about="Number of the run")
    id: str = column(about="Id of its sentence")
    plan: int | None = column(about="Number of the plan", is_needed=False)
    source: str = column(about="Where its sentence is from")
    error: str = column(about="The error")


@dataclass(frozen=True, kw_only=True, repr=False)
class StoreSummary(Result):
    """The summary of a store, with the groups of a statistic next to each other, and the failed runs."""

    title: ClassVar[str] = "Statistics of stored runs"
    summarises_runs: ClassVar[bool] = True
    summary: Records[GroupSummary] = group(label="Summary")
    failed: Records[RunFailure] | None = group(label="Failed runs", is_needed=False)
