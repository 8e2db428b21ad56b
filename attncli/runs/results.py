"""Reading a store, even while a batch is still writing it: a summary as a report, and its tidy table."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import RunError, UserError, nearest
from attncli.report import PLACES, NamedTensor, Report, Statistic, Table
from attncli.runs.connection import Damaged, opened_to_read
from attncli.runs.packing import Packed, inflated, unpacked
from attncli.runs.report_values import GROUP_SUMMARY, Column, Columns, Condition, listed
from attncli.runs.store import IS_STEP, check_header, columns_of, is_number, kept_of
from attncli.settings import SPECS

RUNS_AT_ONCE, BYTES_AT_ONCE = 1000, 64 * 2**20


def differing_settings(several: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The keys in which several settings differ, each with its values."""
    every = list(several)
    keys = sorted({key for settings in every for key in settings})
    values = {key: list(dict.fromkeys(str(settings.get(key)) for settings in every)) for key in keys}
    return {key: found for key, found in values.items() if len(found) > 1}


class RunInfo(NamedTuple):
    """A run by its number, the id of its sentence, the last plan that names it, and its settings' number."""

    run: int
    id: str | None
    plan: int
    settings: int


class Runs(NamedTuple):
    """Neighbouring runs with the same columns, and their values (run, column)."""

    columns: Columns
    runs: list[RunInfo]
    values: np.ndarray


class Step(NamedTuple):
    """A step of a training run on one text; its number, that of its settings, the text, and its values."""

    step: int
    settings: int
    sentence: str | None
    columns: Columns
    values: np.ndarray


class FailedRun(NamedTuple):
    """A run that failed, its source in the plan, and the error."""

    run: RunInfo
    source: str
    error: str


def _stored_object(text: Any) -> dict[str, Any] | None:
    """A JSON object as the store has it; None for anything else."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(map(_is_setting, found.values())) else None


def _is_setting(value: Any) -> bool:
    """Whether tables can hold a value: a number of at most 64 bits, a text, or a list of these."""
    if isinstance(value, list):
        return all(map(_is_setting, value))
    return not isinstance(value, dict) and not (isinstance(value, int) and abs(value) >= 2**63)


class Reader:
    """A store that is open for reading: the runs in the plan of the last batch, or all runs.

    Runs that are damaged are left out, and noted in `damaged`.
    """

    def __init__(self, connection: sqlite3.Connection, *, all_runs: bool = False) -> None:
        self._connection = connection
        self.all_runs = all_runs
        self.keeps_rows, _, self.plan = kept_of(connection)
        self._chosen = "" if all_runs else " AND plan IS NULL"
        self.damaged: dict[int | None, str] = {}
        """What is wrong with a run, by its number; or, by None, with what runs share."""
        self._num_damaged = dict.fromkeys(("done", "failed"), 0)
        # The settings of every experiment in the store, by their number.
        self.settings: dict[int, dict[str, Any]] = {}
        for number, experiment, spec in connection.execute("SELECT settings, experiment, spec FROM settings"):
            stored = _stored_object(spec)
            if stored is not None and isinstance(experiment, str) and is_number(number):
                self.settings[number] = {"experiment": experiment, **stored}
            else:
                self.damaged[None] = "settings are damaged"
        has_runs = connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone()
        if not self.settings and (self.damaged or has_runs):
            raise Damaged("the settings of its runs are damaged")
        self._columns: dict[int, Columns | None] = {}

    def counts(self) -> dict[str, int]:
        """How many runs are done, and how many failed, without those that were read and are damaged."""
        query = f"SELECT status, count(*) FROM runs WHERE true{self._chosen} GROUP BY status"
        counts = dict(self._connection.execute(query).fetchall())
        return {status: counts.get(status, 0) - num for status, num in self._num_damaged.items()}

    def settings_in_use(self) -> dict[int, dict[str, Any]]:
        """The settings of the chosen runs, by their number."""
        query = f"SELECT DISTINCT settings FROM runs WHERE true{self._chosen} ORDER BY settings"
        numbers = (number for (number,) in self._connection.execute(query))
        return {number: self.settings[number] for number in numbers if number in self.settings}

    def count_earlier(self, settings: int | None = None) -> int:
        """How many runs, all or those with these settings, are not in the plan of the last batch."""
        query = (
            "SELECT count(*) FROM runs WHERE typeof(plan) = 'integer' AND settings = coalesce(?, settings)"
        )
        (count,) = self._connection.execute(query, (settings,)).fetchone()
        return int(count)

    def earlier_runs(self) -> str | None:
        """A line on the runs that are not in the plan of the last batch, if there are any."""
        count = self.count_earlier()
        runs = "1 run of an earlier plan" if count == 1 else f"{count:,} runs of earlier plans"
        if not count:
            return None
        if self.all_runs:
            return f"included: {runs} (that of the last batch is plan {self.plan})"
        return f"left out: {runs} (--all includes them)"

    def environments(self) -> list[dict[str, str]]:
        """The versions that computed the runs."""
        used = f"SELECT environment FROM runs WHERE true{self._chosen}"
        query = f"SELECT versions FROM environments WHERE environment IN ({used}) ORDER BY environment"
        stored = [_stored_object(text) for (text,) in self._connection.execute(query)]
        found = [versions for versions in stored if versions is not None]
        if len(found) < len(stored):
            self.damaged[None] = "the versions that computed its runs are damaged"
        return found

    def statistics(self) -> list[str]:
        """The names of all statistics, in the order in which they were stored first."""
        query = "SELECT statistic FROM columns ORDER BY shape, position"
        names = (name for (name,) in self._connection.execute(query))
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def has_layers(self) -> bool:
        """Whether a chosen run has a statistic of each head of a model."""
        shapes = f"SELECT shape FROM runs WHERE status = 'done'{self._chosen}"
        query = f"SELECT EXISTS (SELECT 1 FROM columns WHERE layer IS NOT NULL AND shape IN ({shapes}))"
        (found,) = self._connection.execute(query).fetchone()
        return bool(found)

    def failed(self) -> Iterator[FailedRun]:
        """The failed runs in order."""
        for *about, status, source, error in self._select("source, error", "status = 'failed'"):
            if run := self._run(about, status, texts=(source, error)):
                yield FailedRun(run, str(source), str(error))

    def done(self) -> Iterator[Runs]:
        """The runs that are done, in order."""
        runs: list[RunInfo] = []
        values: list[Packed] = []
        num_bytes = 0
        last: object = None
        # Of a damaged status, too, so that it is noted.
        stored = self._select("shape, encoding, figures", "status IS NOT 'failed'")
        for *about, status, shape, encoding, figures in stored:
            data = self._inflated(status, shape, encoding, figures)
            run = self._run(about, status, data=data)
            if run is None or data is None:
                continue
            if runs and (shape != last or len(runs) == RUNS_AT_ONCE or num_bytes > BYTES_AT_ONCE):
                yield self._neighbours(last, runs, values)
                runs, values, num_bytes = [], [], 0
            last = shape
            runs.append(run)
            values.append(Packed(encoding, data))
            num_bytes += len(data)
        if runs:
            yield self._neighbours(last, runs, values)

    def has_steps(self) -> bool:
        """Whether the runs are steps of a training run."""
        (found,) = self._connection.execute(f"SELECT EXISTS (SELECT 1 FROM runs WHERE {IS_STEP})").fetchone()
        return bool(found)

    def steps(self) -> Iterator[Step]:
        """The steps of a training run, in their order, each on each of its texts."""
        query = (
            "SELECT run, id, coalesce(plan, ?), settings, status, sentence, shape, encoding, figures "
            f"FROM runs WHERE {IS_STEP} AND status IS NOT 'failed' ORDER BY CAST(id AS INTEGER), run"
        )
        stored = self._connection.execute(query, (self.plan,))
        for *about, status, sentence, shape, encoding, figures in stored:
            data = self._inflated(status, shape, encoding, figures)
            run = self._run(about, status, texts=(sentence,), data=data)
            if run is None or data is None:
                continue
            if run.id is None or not (run.id.isascii() and run.id.isdecimal() and is_number(int(run.id))):
                self.damaged[run.run] = "the number of its step is damaged"
            elif not isinstance(self.settings[run.settings].get("model"), str):
                self.damaged[run.run] = "its settings are damaged"
            else:
                columns, _, values = self._neighbours(shape, [run], [Packed(encoding, data)])
                yield Step(int(run.id), run.settings, sentence, columns, values[0])

    def texts_of_steps(self) -> list[tuple[dict[str, Any], str | None]]:
        """The settings with which the steps of a training run were measured, each with its text."""
        query = f"SELECT DISTINCT settings, sentence FROM runs WHERE {IS_STEP}"
        stored = self._connection.execute(query)
        return [(self.settings[number], text) for number, text in stored if number in self.settings]

    def _columns_of(self, shape: int) -> Columns | None:
        """None where they are damaged."""
        if shape not in self._columns:
            try:
                self._columns[shape] = columns_of(self._connection, shape)
            except Damaged:
                self._columns[shape] = None
        return self._columns[shape]

    def _inflated(self, status: Any, shape: Any, encoding: Any, figures: Any) -> bytes | None:
        """The numbers of a run that is done as bytes; None where they or their columns are damaged."""
        columns = self._columns_of(shape) if status == "done" and is_number(shape) else None
        return None if columns is None else inflated(encoding, figures, len(columns))

    def _neighbours(self, shape: Any, runs: list[RunInfo], values: Sequence[Packed]) -> Runs:
        columns = self._columns_of(shape)
        assert columns is not None, "a run with values has columns"
        return Runs(columns, runs, unpacked(columns, values))

    def _run(
        self,
        about: Sequence[Any],
        status: Any,
        *,
        texts: Sequence[Any] = (),
        data: bytes | None = None,
    ) -> RunInfo | None:
        """The run with the fields of RunInfo; None, which is noted, where it is damaged or has no data."""
        run, name, plan, settings = about
        if not is_number(run):
            fault = "its number is"
        elif status not in ("done", "failed"):
            fault = "its status is"
        elif not all(text is None or isinstance(text, str) for text in (name, *texts)):
            fault = "its texts are"
        elif not is_number(plan):
            fault = "its plan is"
        elif settings not in self.settings:
            fault = "its settings are"
        elif status == "done" and data is None:
            fault = "its statistics are"
        else:
            return RunInfo(run, name, plan, settings)
        if run not in self.damaged and status in self._num_damaged:
            self._num_damaged[status] += 1
        self.damaged[run] = f"{fault} damaged"
        return None

    def _select(self, columns: str, where: str) -> sqlite3.Cursor:
        """The runs that meet a condition in order: the fields of RunInfo, status, then these columns."""
        about = "run, id, coalesce(plan, ?), settings, status"
        query = f"SELECT {about}, {columns} FROM runs WHERE {where}{self._chosen} ORDER BY run"
        return self._connection.execute(query, (self.plan,))


MOST_DAMAGED_NAMED = 3


def _line_on_damaged(path: Path, damaged: Mapping[int | None, str]) -> str:
    """That runs were left out, and what can be done."""
    lines = [what if run is None else f"run {run}: {what}" for run, what in damaged.items()]
    if len(lines) > MOST_DAMAGED_NAMED:
        lines[MOST_DAMAGED_NAMED:] = [f"{len(lines) - MOST_DAMAGED_NAMED:,} more"]
    return f"{path}: {'; '.join(lines)}: left out: restore a copy of the store, or start over with --fresh"


@contextmanager
def reading(path: Path, *, all_runs: bool = False) -> Iterator[Reader]:
    """The store of that name; UserError if there is none, RunError if it cannot be read.

    RunError, too, at the end, where damaged runs were left out.
    """
    if not path.exists():
        raise UserError(f"{path}: no such file")
    check_header(path)
    with opened_to_read(path) as connection:
        reader = Reader(connection, all_runs=all_runs)
        yield reader
    if reader.damaged:
        raise RunError(_line_on_damaged(path, reader.damaged))


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

    def values_there(self) -> dict[str, list[Any]]:
        """What there is of each name of a condition: its values in order, numbers before texts."""
        found: dict[str, set[Any]] = {condition.name: set() for condition in self.where}
        for runs in self.reader.done():
            for name, values in found.items():
                if name in PLACES:
                    values |= {getattr(column, name) for column in runs.columns} - {None}
                elif name in {*self._settings, *RUN_NAMES}:
                    values |= {self._run_value(name, run) for run in runs.runs}
                else:
                    places = [i for i, column in enumerate(runs.columns) if column.statistic == name]
                    values |= {*runs.values[:, places][np.isfinite(runs.values[:, places])].tolist()}
        return {name: sorted(values, key=_in_order) for name, values in found.items() if values}

    def keeps(self, failed: FailedRun) -> bool:
        """Whether a failed run meets the conditions, which must all be on settings."""
        return all(
            condition.name in {*self._settings, *RUN_NAMES}
            and condition.holds(self._run_value(condition.name, failed.run))
            for condition in self.where
        )


MOST_VALUES = 12


def _listed_values(values: Sequence[Any]) -> str:
    """`1, 2 or 4`; of many numbers their least and greatest, of many texts the first."""
    listed = [f"{value:.4g}" if isinstance(value, float) else _typed(value) for value in values]
    if len(listed) <= MOST_VALUES:
        return " or ".join(filter(None, [", ".join(listed[:-1]), *listed[-1:]]))
    if all(isinstance(value, int | float) for value in values):
        return f"from {listed[0]} to {listed[-1]}"
    return f"{', '.join(listed[:MOST_VALUES])} and {len(listed) - MOST_VALUES} more"


def _typed(value: Any) -> str:
    """A value as conditions have it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _in_order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)


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
    named = {*group_by, *(condition.name for condition in where)}
    repeated = [key for key in REPEATED if key in _swept(reader) and key not in named]
    found: dict[str, Statistic] = {}
    all_rows = _ordered(summary.rows(), sort, ascending)
    if rows := all_rows[:top]:
        found["summary"] = Table(rows)
    failed = _failed(reader, summary)
    if failed:
        found["failed"] = failed
    asked = {"store": str(path), "where": list(map(str, where)), "group_by": list(group_by)}
    asked |= {} if sort is None else {"sort": sort}
    is_grid = set(group_by) == set(PLACES) and sort is None and top is None
    tensors = _grids(rows) if is_grid else {}
    tokens: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    if drawn and rows and len(group_by) == 2 and len(statistics) == 1 and not is_grid:
        tensors, tokens, columns = _map(rows, statistics[0], group_by)
    notes = _notes_on_runs(reader)
    if repeated:
        notes.append(f"A mean is over every {' and '.join(repeated)}.")
    if _is_of_plain_texts(rows, reader):
        notes.append(INDUCTION_NOTE)
    if len(rows) < len(all_rows):
        notes.append(f"The first {len(rows):,} of {len(all_rows):,} rows.")
    if not rows and reader.counts()["done"]:
        notes.append("No value meets these conditions.")
        notes += [f"{name} is {_listed_values(values)}." for name, values in summary.values_there().items()]
    return Report("results", asked, {}, tokens, columns, tensors, found, tuple(notes))


def _failed(reader: Reader, summary: Summary) -> Table:
    """The failed runs that meet the conditions, with their errors."""
    return Table(
        {"run": f"run {run.run}", "id": run.id or ""}
        | ({"plan": run.plan} if reader.all_runs else {})
        | {"source": source, "error": error}
        for run, source, error in filter(summary.keeps, reader.failed())
    )


def _notes_on_runs(reader: Reader) -> list[str]:
    """How many runs are done and failed, what computed them, and which are left out."""
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
    "Induction is of texts with repeats, here of the words that happen to come again: attn heads on its "
    "repeated random tokens tells which heads do it."
)


def _is_of_plain_texts(rows: Sequence[Mapping[str, Any]], reader: Reader) -> bool:
    """Whether a summary has induction of runs that did not read repeated random tokens."""
    has_induction = any("induction" in re.split("[._]", str(row["statistic"])) for row in rows)
    return has_induction and any(
        settings.get("probe") != "repeated" for settings in reader.settings_in_use().values()
    )


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


TIDY_COLUMNS = ("layer", "head", "batch", "token", "statistic", "value")

Block = Mapping[str, list[Any]]


def tidy_columns(reader: Reader) -> dict[str, str]:
    """The name and type of each column: integer, text or number."""
    return {
        "run": "integer",
        "id": "text",
        **({"plan": "integer"} if reader.all_runs else {}),
        **_swept(reader),
        "layer": "integer",
        "head": "integer",
        **({"batch": "integer", "token": "integer"} if reader.keeps_rows else {}),
        "statistic": "text",
        "value": "number",
    }


def tidy_blocks(reader: Reader) -> Iterator[Block]:
    """The rows as columns of equal length; None for what is missing or not a number."""
    names = tidy_columns(reader)
    for runs in reader.done():
        yield {name: _cells(runs, name, kind, reader) for name, kind in names.items()}


def _swept(reader: Reader) -> dict[str, str]:
    """The settings in which runs of one experiment differ, unless another column has the same name."""
    used = reader.settings_in_use().values()
    by_experiment = [
        [settings for settings in used if settings["experiment"] == name]
        for name in dict.fromkeys(settings["experiment"] for settings in used)
    ]
    keys = dict.fromkeys(key for own in by_experiment for key in differing_settings(own))
    return {key: _type_of([own.get(key) for own in used]) for key in keys if key not in TIDY_COLUMNS}


REPEATED = ("seed",)
"""Settings of which several values repeat an experiment: their mean is what is asked."""


def usual_groups(reader: Reader) -> list[str]:
    """The experiment where there are several, what their runs differ in, and the heads of a model.

    A setting that follows from the others, as head_dim from num_heads, makes no group of its own.
    """
    used = list(reader.settings_in_use().values())
    names = list(dict.fromkeys(own["experiment"] for own in used))
    groups = ["experiment"] if len(names) > 1 else []
    known = [SPECS[name] for name in names if name in SPECS]
    fields = {key: field for spec in known for key, field in spec.model_fields.items()}
    swept = [key for key in _swept(reader) if key in fields and key not in REPEATED]
    for key in sorted(swept, key=lambda key: fields[key].default_factory is not None):
        if _count_groups(used, [*groups, key]) > _count_groups(used, groups):
            groups.append(key)
    return [*groups, *(PLACES if reader.has_layers() else ())] or ["experiment"]


def _count_groups(used: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(str(own.get(key)) for key in keys) for own in used})


def _type_of(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return "integer"
    return "number" if kinds <= {int, float} else "text"


def _cells(runs: Runs, name: str, kind: str, reader: Reader) -> list[Any]:
    if name in RunInfo._fields:
        width = len(runs.columns)
        return [value for run in runs.runs for value in [getattr(run, name)] * width]
    if name not in TIDY_COLUMNS:
        own = [reader.settings[run.settings].get(name) for run in runs.runs]
        if kind == "text":
            texts = (str(value).lower() if isinstance(value, bool) else str(value) for value in own)
            own = [None if value is None else text for value, text in zip(own, texts, strict=True)]
        return [cell for cell in own for _ in runs.columns]
    if name != "value":
        return [getattr(column, name) for column in runs.columns] * len(runs.runs)
    values: list[Any] = runs.values.ravel().tolist()
    for i in np.flatnonzero(np.isnan(runs.values)).tolist():
        values[i] = None
    return values
