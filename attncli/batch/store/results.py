"""A summary of a store: its statistics by group, as a report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from attncli.batch.conditions import Condition, listed
from attncli.batch.store.columns import GROUP_SUMMARY, Column
from attncli.batch.store.reading import FailedRun, Reader, RunInfo, Runs
from attncli.errors import UserError, nearest
from attncli.report import PLACES, NamedTensor, Report, Statistic, Table

RUN_NAMES = ("id", "run", "plan")

Group = tuple[Any, ...]


@dataclass
class Total:
    """Count, mean, deviation and extremes of the values of one statistic and group, which come in parts.

    `squares` is the sum of (x - mean)^2: parts merge as in Chan, Golub and LeVeque (1979), eq. 2.1.
    """

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    min: float = np.inf
    max: float = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Add more values, all of them numbers."""
        if not values.size:
            return
        total = float(values.sum())
        mean = total / values.size
        self.squares += float(((values - mean) ** 2).sum())
        if self.count:
            between = mean - self.sum / self.count
            self.squares += between**2 * self.count * values.size / (self.count + values.size)
        self.count += values.size
        self.sum += total
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))

    def row(self) -> dict[str, Any]:
        """The GROUP_SUMMARY of at least one value; std is unbiased, and None for one value."""
        std = sqrt(self.squares / (self.count - 1)) if self.count > 1 else None
        numbers = self.count, self.sum / self.count, std, self.min, self.max
        return dict(zip(GROUP_SUMMARY, numbers, strict=True))


@dataclass
class Summary:
    """Adds up the values that meet the conditions, by statistic and group."""

    reader: Reader
    where: Sequence[Condition]
    group_by: Sequence[str]
    statistics: Sequence[str]

    def __post_init__(self) -> None:
        self._names = self.reader.statistics()
        settings = self.reader.settings.values()
        self._settings = dict.fromkeys(key for own in settings for key in own)
        of_runs = [*PLACES, *RUN_NAMES, *self._settings]
        errors = [
            f"{flag} {name}: the store has no such {what}{nearest(name, known)}; known: {listed(known)}"
            for flag, what, names, known in (
                ("--where", "name", [condition.name for condition in self.where], [*of_runs, *self._names]),
                ("--group-by", "setting", self.group_by, of_runs),
                ("--statistic", "statistic", self.statistics, self._names),
            )
            for name in names
            if name not in known
        ]
        if errors:
            raise UserError(*errors)

    def rows(self) -> list[dict[str, Any]]:
        """One row per statistic and group; the groups of a statistic are neighbours."""
        totals: dict[tuple[str, Group], Total] = {}
        for runs in self.reader.done():
            kept = self._kept(runs)
            by_column, by_run = _grouped(runs.columns, self._of_column), _grouped(runs.runs, self._of_run)
            for (about, rows), ((statistic, *places), columns) in product(by_run.items(), by_column.items()):
                if not self.statistics or statistic in self.statistics:
                    where = np.ix_(rows, columns)
                    parts = zip(self.group_by, places, about, strict=True)
                    group = tuple(place if name in PLACES else value for name, place, value in parts)
                    totals.setdefault((statistic, group), Total()).add(runs.values[where][kept[where]])
        order = {name: i for i, name in enumerate(self._names)}
        return [
            {"statistic": statistic, **dict(zip(self.group_by, group, strict=True)), **total.row()}
            for (statistic, group), total in sorted(totals.items(), key=lambda item: order[item[0][0]])
            if total.count
        ]

    def _of_column(self, column: Column) -> Group:
        """The statistic, and layer and head if groups are by these."""
        return column.statistic, *(getattr(column, n) if n in PLACES else None for n in self.group_by)

    def _of_run(self, run: RunInfo) -> Group:
        return tuple(self._run_value(name, run) for name in self.group_by)

    def _run_value(self, name: str, run: RunInfo) -> Any:
        if name in PLACES:
            return None
        if name in RUN_NAMES:
            return getattr(run, name)
        value = self.reader.settings[run.settings].get(name)
        return ",".join(map(str, value)) if isinstance(value, list) else value

    def _kept(self, runs: Runs) -> np.ndarray:
        """Which values are numbers, from runs, layers and heads where every condition holds."""
        kept: np.ndarray = np.isfinite(runs.values)
        for condition in self.where:
            if condition.name in PLACES:
                kept &= np.array(
                    [condition.holds(getattr(c, condition.name)) for c in runs.columns], dtype=bool
                )
            elif condition.name in {*self._settings, *RUN_NAMES}:
                holds = [condition.holds(self._run_value(condition.name, run)) for run in runs.runs]
                kept &= np.array(holds, dtype=bool)[:, None]
            else:
                kept &= _where_statistic(runs, condition)
        return kept

    def keeps(self, failed: FailedRun) -> bool:
        """Whether a failed run meets the conditions, which must all be on settings."""
        return all(
            condition.name in {*self._settings, *RUN_NAMES}
            and condition.holds(self._run_value(condition.name, failed.run))
            for condition in self.where
        )


def _grouped(items: Iterable[Any], group: Callable[[Any], Group]) -> dict[Group, list[int]]:
    """The places of the items of each group."""
    places: dict[Group, list[int]] = {}
    for place, item in enumerate(items):
        places.setdefault(group(item), []).append(place)
    return places


def _where_statistic(runs: Runs, condition: Condition) -> np.ndarray:
    """The layers and heads where a statistic meets a condition; all if it is a statistic of the whole run."""
    holds = np.zeros(runs.values.shape, dtype=bool)
    places = [(column.layer, column.head) for column in runs.columns]
    for i, column in enumerate(runs.columns):
        if column.statistic == condition.name:
            whole_run = places[i] == (None, None)
            beside = [j for j, place in enumerate(places) if whole_run or place == places[i]]
            holds[:, beside] |= np.asarray(condition.holds(runs.values[:, i]), dtype=bool)[:, None]
    return holds


def results(
    path: Path,
    reader: Reader,
    *,
    where: Sequence[Condition],
    group_by: Sequence[str],
    statistics: Sequence[str],
    sort: str | None = None,
    ascending: bool = False,
    top: int | None = None,
    drawn: bool = False,
) -> Report:
    """The summary as a report; UserError for names that the store does not have, or a store without runs.

    With `sort`, one of GROUP_SUMMARY, the rows are sorted by it, the largest first unless `ascending`; only
    the first `top` rows are kept. Unsorted groups by layer and head also make a grid of means, and groups by
    two settings do if the view is `drawn`.
    """
    if not reader.settings:
        raise UserError(f"{path}: holds no run yet: rerun the same attn batch to resume")
    summary = Summary(reader, where, group_by, statistics)
    counts = reader.counts()
    found: dict[str, Statistic] = {}
    all_rows = _ordered(summary.rows(), sort, ascending)
    if rows := all_rows[:top]:
        found["summary"] = Table(rows)
    failed = Table(
        {"run": f"run {run.run}", "id": run.id or ""}
        | ({"plan": run.plan} if reader.all_runs else {})
        | {"source": source, "error": error}
        for run, source, error in filter(summary.keeps, reader.failed())
    )
    if failed:
        found["failed"] = failed
    asked = {"store": str(path), "where": list(map(str, where)), "group_by": list(group_by)}
    is_grid = set(group_by) == set(PLACES) and sort is None and top is None
    tensors = _grids(rows) if is_grid else {}
    tokens: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    if drawn and rows and len(group_by) == 2 and len(statistics) == 1 and not is_grid:
        tensors, tokens, columns = _map(rows, statistics[0], group_by)
    used = ("attncli", "torch")
    environments = [f"{name} {one[name]}" for one in reader.environments() for name in used if name in one]
    versions = ", ".join(dict.fromkeys(environments))
    made_with = f"; made with {versions}" if versions else ""
    notes = [f"{counts['done']:,} runs are done, {counts['failed']:,} failed{made_with}."]
    if earlier := reader.earlier_runs():
        notes.append(f"{earlier.capitalize()}.")
    if len(rows) < len(all_rows):
        notes.append(f"The first {len(rows):,} of {len(all_rows):,} rows.")
    if not rows and counts["done"]:
        notes.append("No value meets these conditions.")
    return Report("results", asked, {}, tokens, columns, tensors, found, tuple(notes))


def _map(
    rows: Sequence[Mapping[str, Any]], statistic: str, group_by: Sequence[str]
) -> tuple[dict[str, NamedTensor], tuple[str, ...], tuple[str, ...]]:
    """The means by two settings, and the values of both settings in the order of the rows."""
    first, second = (list(dict.fromkeys(row[name] for row in rows)) for name in group_by)
    means = np.full((len(first), len(second)), np.nan)
    for row in rows:
        means[first.index(row[group_by[0]]), second.index(row[group_by[1]])] = row["mean"]
    title = f"{statistic} by {group_by[0]} and {group_by[1]}"
    return {title: NamedTensor(("row", "column"), means)}, tuple(map(str, first)), tuple(map(str, second))


def _ordered(rows: list[dict[str, Any]], sort: str | None, ascending: bool) -> list[dict[str, Any]]:
    """The rows sorted by one of their numbers, those without it last."""
    if sort is None:
        return rows
    with_number = [row for row in rows if row[sort] is not None]
    without = [row for row in rows if row[sort] is None]
    return sorted(with_number, key=lambda row: row[sort], reverse=not ascending) + without


def _grids(rows: list[dict[str, Any]]) -> dict[str, NamedTensor]:
    """The means of each statistic as a grid of layers and heads."""
    tables: dict[str, Table] = {}
    for row in rows:
        tables.setdefault(row["statistic"], Table()).append(row)
    return {
        f"mean of {name}": grid for name, table in tables.items() for grid in table.grids("mean").values()
    }
