"""The summary of a store as a report, and its tidy table."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from attncli.core.names import PLACE
from attncli.errors import UserError, nearest
from attncli.features.results.results import GroupSummary, RunFailure, StoreSummary
from attncli.records.columns import Records
from attncli.records.report import PLACES, NamedTensor, Report
from attncli.records.stored_columns import StoredColumn
from attncli.runs.reading import (
    RUN_NAMES,
    TIDY_COLUMNS,
    FailedRun,
    Reader,
    RunInfo,
    Runs,
    swept_settings,
)
from attncli.runs.report_values import GROUP_SUMMARY, Condition, listed
from attncli.settings import SPECS, every_setting_of

GroupKey = tuple[Any, ...]


@dataclass
class Total:
    """The count, mean, deviation and extremes of one statistic's values in one group, added in parts.

    `squares` is the sum of (x - mean)^2; parts are merged as in Chan, Golub and LeVeque (1979), eq. 2.1.
    """

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    min: float = np.inf
    max: float = -np.inf

    def add(self, values: np.ndarray) -> None:
        """Add values, all of which must be numbers."""
        if not values.size:
            return
        total = float(values.sum())
        mean = total / values.size
        self.squares += float(((values - mean) ** 2).sum())
        if self.count:
            between = mean - self.mean
            self.squares += between**2 * self.count * values.size / (self.count + values.size)
        self.count += values.size
        self.sum += total
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))

    @property
    def mean(self) -> float:
        """The mean of the values, of which there must be at least one."""
        return self.sum / self.count

    @property
    def std(self) -> float | None:
        """The unbiased standard deviation, or None for a single value."""
        return sqrt(self.squares / (self.count - 1)) if self.count > 1 else None


@dataclass
class Summary:
    """The values that meet the conditions, collected by statistic and group."""

    reader: Reader
    where: Sequence[Condition]
    group_by: Sequence[str]
    statistics: Sequence[str]

    def __post_init__(self) -> None:
        self._names = self.reader.statistics()
        settings = self.reader.settings.values()
        self._settings = dict.fromkeys(key for run_settings in settings for key in run_settings)
        run_names = [*PLACES, *RUN_NAMES, *self._settings]
        errors = [
            f"{flag} {name}: the store has no such {what}{nearest(name, known)}; known: {listed(known)}"
            for flag, what, names, known in (
                ("--where", "name", [condition.name for condition in self.where], [*run_names, *self._names]),
                ("--group-by", "setting", self.group_by, run_names),
                ("--statistic", "statistic", self.statistics, self._names),
            )
            for name in names
            if name not in known
        ]
        if errors:
            raise UserError(*errors)

    def rows(self) -> Records[GroupSummary]:
        """Return one row per statistic and group; the groups of a statistic are neighbours."""
        totals: dict[tuple[str, GroupKey], Total] = {}
        for runs in self.reader.done(self._needed()):
            selected = self._selected(runs)
            by_column = _grouped(map(self._column_group, runs.columns))
            for about, rows in self._run_groups(runs).items():
                values, is_selected = runs.values[rows], selected[rows]
                for (statistic, *places), columns in by_column.items():
                    if not self.statistics or statistic in self.statistics:
                        parts = zip(self.group_by, places, about, strict=True)
                        group = tuple(place if name in PLACES else value for name, place, value in parts)
                        part = values[:, columns][is_selected[:, columns]]
                        totals.setdefault((statistic, group), Total()).add(part)
        order = {name: i for i, name in enumerate(self._names)}
        summed = [
            (statistic, group, total)
            for (statistic, group), total in sorted(totals.items(), key=lambda item: order[item[0][0]])
            if total.count
        ]
        groups = {name: [group[i] for _, group, _ in summed] for i, name in enumerate(self.group_by)}
        numbers = {name: [getattr(total, name) for _, _, total in summed] for name in GROUP_SUMMARY}
        return GroupSummary.table(statistic=[statistic for statistic, _, _ in summed], **(groups | numbers))

    def _needed(self) -> set[str] | None:
        """Return the statistics to read, or None for all of them."""
        if not self.statistics:
            return None
        return {*self.statistics, *(condition.name for condition in self.where)}

    def _column_group(self, column: StoredColumn) -> GroupKey:
        """Return the statistic, with the layer and head if they define groups."""
        return column.statistic, *(getattr(column, n) if n in PLACES else None for n in self.group_by)

    def _run_groups(self, runs: Runs) -> dict[GroupKey, Any]:
        """Return the rows in each group, by the settings and run names that define groups."""
        if {*RUN_NAMES} & {*self.group_by}:
            cells = (
                [None] * len(runs.run) if name in PLACES else self._run_values(name, runs)
                for name in self.group_by
            )
            return _grouped(zip(*cells, strict=True))
        numbers: dict[GroupKey, list[int]] = {}
        for number in dict.fromkeys(runs.settings):
            group = (None if name in PLACES else self._setting(name, number) for name in self.group_by)
            numbers.setdefault(tuple(group), []).append(number)
        if len(numbers) == 1:
            return dict.fromkeys(numbers, slice(None))
        settings = np.array(runs.settings)
        return {
            group: np.flatnonzero(np.isin(settings, group_settings))
            for group, group_settings in numbers.items()
        }

    def _run_values(self, name: str, runs: Runs) -> Sequence[Any]:
        """Return a setting or a field of RunInfo for each run."""
        if name in RUN_NAMES:
            values: Sequence[Any] = getattr(runs, name)
            return values
        settings = {number: self._setting(name, number) for number in {*runs.settings}}
        return [settings[number] for number in runs.settings]

    def _run_value(self, name: str, run: RunInfo) -> Any:
        """Return a setting or a field of RunInfo for a single run."""
        return getattr(run, name) if name in RUN_NAMES else self._setting(name, run.settings)

    def _setting(self, name: str, number: int) -> Any:
        """Return a setting of the experiment with that number; a list is returned as text."""
        value = self.reader.settings[number].get(name)
        return ",".join(map(str, value)) if isinstance(value, list) else value

    def _selected(self, runs: Runs) -> np.ndarray:
        """Return a mask of the numbers whose run, layer and head meet every condition."""
        selected: np.ndarray = np.isfinite(runs.values)
        for condition in self.where:
            if condition.name in PLACES:
                holds = [condition.holds(_place(condition, column)) for column in runs.columns]
                selected &= np.array(holds, dtype=bool)
            elif condition.name in {*self._settings, *RUN_NAMES}:
                holds = [*map(condition.holds, self._run_values(condition.name, runs))]
                selected &= np.array(holds, dtype=bool)[:, None]
            else:
                selected &= _where_statistic(runs, condition)
        return selected

    def values_there(self) -> dict[str, list[Any]]:
        """Return, for each name in a condition, its stored values in order, with numbers before strings."""
        there: dict[str, set[Any]] = {condition.name: set() for condition in self.where}
        by_name = {condition.name: condition for condition in self.where}
        for runs in self.reader.done():
            for name, values in there.items():
                if name in PLACES:
                    values |= {_place(by_name[name], column) for column in runs.columns} - {None}
                elif name in {*self._settings, *RUN_NAMES}:
                    values |= {*self._run_values(name, runs)}
                else:
                    places = [i for i, column in enumerate(runs.columns) if column.statistic == name]
                    values |= {*runs.values[:, places][np.isfinite(runs.values[:, places])].tolist()}
        return {name: sorted(values, key=_in_order) for name, values in there.items() if values}

    def keeps(self, failed: FailedRun) -> bool:
        """Return True if a failed run meets the conditions, which must all be on settings."""
        return all(
            condition.name in {*self._settings, *RUN_NAMES}
            and condition.holds(self._run_value(condition.name, failed.run))
            for condition in self.where
        )


def _place(condition: Condition, column: StoredColumn) -> int | str | None:
    """Return the layer or head of a column, as `5:11` if a condition names a model's head like this."""
    if condition.name == "layer":
        return column.layer
    is_model_head = column.layer is not None and column.head is not None
    return (
        f"{column.layer}:{column.head}" if is_model_head and PLACE.fullmatch(condition.text) else column.head
    )


MOST_VALUES = 12


def _listed_values(values: Sequence[Any]) -> str:
    """List values as `1, 2 or 4`; of many numbers only the extremes, and of many strings only the first."""
    listed = [f"{value:.4g}" if isinstance(value, float) else _typed(value) for value in values]
    if len(listed) <= MOST_VALUES:
        return " or ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))
    if all(isinstance(value, int | float) for value in values):
        return f"from {listed[0]} to {listed[-1]}"
    return f"{', '.join(listed[:MOST_VALUES])} and {len(listed) - MOST_VALUES} more"


def _typed(value: Any) -> str:
    """Return a value as it is spelled in conditions."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _in_order(value: Any) -> tuple[bool, tuple[float, ...], str]:
    if isinstance(value, int | float):
        return False, (float(value),), ""
    head = PLACE.fullmatch(str(value))
    return True, (float(head[2]), float(head[3])) if head else (), str(value)


def _grouped(groups: Iterable[GroupKey]) -> dict[GroupKey, list[int]]:
    """Return the positions of the items in each group."""
    places: dict[GroupKey, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group, []).append(place)
    return places


def _where_statistic(runs: Runs, condition: Condition) -> np.ndarray:
    """Return the heads where a statistic meets a condition, or all heads for a statistic of the whole run."""
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
    """Return the summary as a report. Raises UserError for unknown names, and for a store without runs.

    With `sort`, one of GROUP_SUMMARY, the rows are sorted by that column, the largest first unless
    `ascending`; only the first `top` rows are returned. Unsorted groups by layer and head also form a grid of
    means, and so do groups by two settings if the view is `drawn`.
    """
    if not reader.settings:
        raise UserError(f"{path}: contains no runs yet: rerun the command that writes the store")
    summary = Summary(reader, where, group_by, statistics)
    named = {*group_by, *(condition.name for condition in where)}
    repeated = [key for key in REPEATED if key in swept_settings(reader) and key not in named]
    all_rows = _ordered(summary.rows(), sort, ascending)
    rows = all_rows[:top]
    result = StoreSummary(summary=rows, failed=_failed(reader, summary))
    spec = {"store": str(path), "where": list(map(str, where)), "group_by": list(group_by)}
    spec |= {} if sort is None else {"sort": sort}
    is_grid = set(group_by) == set(PLACES) and sort is None and top is None
    tensors = _grids(rows) if is_grid else {}
    tokens: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    if drawn and rows and len(group_by) == 2 and len(statistics) == 1 and not is_grid:
        tensors, tokens, columns = _map(rows, statistics[0], group_by)
    notes = _notes_on_runs(reader)
    if repeated:
        notes.append(f"Each mean covers every {' and '.join(repeated)}.")
    if _reads_plain_texts(rows, reader):
        notes.append(INDUCTION_NOTE)
    if len(rows) < len(all_rows):
        notes.append(f"Only the first {len(rows):,} of {len(all_rows):,} rows are shown.")
    if not rows and reader.counts()["done"]:
        notes.append("No value meets these conditions.")
        notes += [f"{name} is {_listed_values(values)}." for name, values in summary.values_there().items()]
    return Report(
        "results",
        spec,
        {},
        tokens,
        columns,
        tensors,
        result,
        tuple(notes),
    )


def _failed(reader: Reader, summary: Summary) -> Records[RunFailure]:
    """Return the failed runs that meet the conditions, with their errors."""
    failed = [*filter(summary.keeps, reader.failed())]
    return RunFailure.table(
        run=[f"run {each.run.run}" for each in failed],
        id=[each.run.id or "" for each in failed],
        **({"plan": [each.run.plan for each in failed]} if reader.all_runs else {}),
        source=[each.source for each in failed],
        error=[each.error for each in failed],
    )


def _notes_on_runs(reader: Reader) -> list[str]:
    """Return notes on completed and failed runs, the versions that computed them, and runs left out."""
    counts = reader.counts()
    done = "1 run is" if counts["done"] == 1 else f"{counts['done']:,} runs are"
    versions = [
        f"{name} {environment[name]}"
        for environment in reader.environments()
        for name in ("attncli", "torch")
        if name in environment
    ]
    made_with = f"; made with {', '.join(dict.fromkeys(versions))}" if versions else ""
    notes = [f"{done} done, {counts['failed']:,} failed{made_with}."]
    if earlier := reader.earlier_runs():
        notes.append(f"{earlier.capitalize()}.")
    return notes


INDUCTION_NOTE = (
    "Induction here depends on the words that happen to repeat in the texts: attn heads without a text reads "
    "repeated random tokens, which show the induction heads."
)


def _reads_plain_texts(rows: Records[GroupSummary], reader: Reader) -> bool:
    """Return True if a summary has induction scores from runs on texts without repeated random tokens."""
    has_induction = any("induction" in re.split("[._]", row.statistic) for row in rows)
    return has_induction and any(
        settings.get("probe", "repeated") != "repeated" for settings in reader.settings_in_use().values()
    )


def _map(
    rows: Records[GroupSummary], statistic: str, group_by: Sequence[str]
) -> tuple[dict[str, NamedTensor], tuple[str, ...], tuple[str, ...]]:
    """Return the means by two settings, and the values of both settings in the order of the rows."""
    first, second = (list(dict.fromkeys(row[name] for row in rows)) for name in group_by)
    means = np.full((len(first), len(second)), np.nan)
    for row in rows:
        means[first.index(row[group_by[0]]), second.index(row[group_by[1]])] = row.mean
    title = f"{statistic} by {group_by[0]} and {group_by[1]}"
    return {title: NamedTensor(("row", "column"), means)}, tuple(map(str, first)), tuple(map(str, second))


def _ordered(rows: Records[GroupSummary], sort: str | None, ascending: bool) -> Records[GroupSummary]:
    """Return the rows sorted by one of their numbers; rows that lack it come last."""
    if sort is None:
        return rows
    numbers = rows.column(sort)
    return rows.taken((numbers if ascending else -numbers).argsort(kind="stable").tolist())


def _grids(rows: Records[GroupSummary]) -> dict[str, NamedTensor]:
    """Return each statistic's means as a grid of layers and heads."""
    places: dict[str, list[int]] = {}
    for place, statistic in enumerate(rows.cells["statistic"]):
        places.setdefault(statistic, []).append(place)
    return {
        f"mean of {name}": grid
        for name, statistic_places in places.items()
        for grid in rows.taken(statistic_places).grids("mean").values()
    }


TidyBlock = Mapping[str, list[Any]]


def tidy_columns(reader: Reader) -> dict[str, str]:
    """Return the name and type of each column: integer, text or number."""
    return {
        "run": "integer",
        "id": "text",
        **({"plan": "integer"} if reader.all_runs else {}),
        **swept_settings(reader),
        "layer": "integer",
        "head": "integer",
        **({"batch": "integer", "token": "integer"} if reader.keeps_rows else {}),
        "statistic": "text",
        "value": "number",
    }


def tidy_blocks(reader: Reader) -> Iterator[TidyBlock]:
    """Yield the rows as columns of equal length, with None for a missing value."""
    names = tidy_columns(reader)
    for runs in reader.done():
        yield {name: _cells(runs, name, kind, reader) for name, kind in names.items()}


REPEATED = ("seed",)
"""Settings that only repeat an experiment, so that the mean over their values is reported."""


def usual_groups(reader: Reader) -> list[str]:
    """Return the default groups: the experiments if there are several, the swept settings, and the heads.

    A setting that follows from others, as head_dim follows from num_heads, does not define groups. For runs
    without a config file, such as recorded runs, every setting counts.
    """
    used = list(reader.settings_in_use().values())
    names = list(dict.fromkeys(settings["experiment"] for settings in used))
    groups = ["experiment"] if len(names) > 1 else []
    known = [every_setting_of(name) for name in names if name in SPECS]
    fields = {key: field for spec in known for key, field in spec.model_fields.items()}
    follows = {key for key, field in fields.items() if field.default_factory is not None}
    counts_all = len(known) < len(names)
    swept = [key for key in swept_settings(reader) if (counts_all or key in fields) and key not in REPEATED]
    for key in sorted(swept, key=follows.__contains__):
        if _count_groups(used, [*groups, key]) > _count_groups(used, groups):
            groups.append(key)
    return [*groups, *(PLACES if reader.has_layers() else ())] or ["experiment"]


def with_layers(group_by: Sequence[str], reader: Reader) -> list[str]:
    """Return the groups with the layer added before a model's head, to keep heads of two layers apart."""
    layer, head = PLACES
    if layer in group_by or head not in group_by or not reader.has_layers():
        return [*group_by]
    place = [*group_by].index(head)
    return [*group_by[:place], layer, *group_by[place:]]


def _count_groups(used: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(str(settings.get(key)) for key in keys) for settings in used})


def _cells(runs: Runs, name: str, kind: str, reader: Reader) -> list[Any]:
    if name in RunInfo._fields:
        width = len(runs.columns)
        return [value for cell in getattr(runs, name) for value in [cell] * width]
    if name not in TIDY_COLUMNS:
        cells = [reader.settings[number].get(name) for number in runs.settings]
        if kind == "text":
            cells = [None if cell is None else _typed(cell) for cell in cells]
        return [cell for cell in cells for _ in runs.columns]
    if name != "value":
        return [getattr(column, name) for column in runs.columns] * len(runs.run)
    values: list[Any] = runs.values.ravel().tolist()
    for i in np.flatnonzero(np.isnan(runs.values)).tolist():
        values[i] = None
    return values
