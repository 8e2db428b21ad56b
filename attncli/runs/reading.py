"""Reads a store, even while a batch is writing to it: its runs, their settings and their numbers."""

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress, groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import RunError, UserError
from attncli.records.report import PLACES
from attncli.records.stored_columns import StoredColumns
from attncli.runs.chunks import DONE
from attncli.runs.connection import Damaged, opened_to_read
from attncli.runs.number_tables import NUMBER_TABLES, NumbersOfRuns, TablePart, quoted, table_parts
from attncli.runs.store import IS_STEP, is_number, read_columns, read_contents
from attncli.runs.store_files import check_header
from attncli.system.plain_text import parsed_json

STEP = re.compile("[0-9]{1,15}")
RUNS_AT_ONCE = 2**15
"""The number of rows of the table `runs` that are fetched at a time."""
NUMBERS_AT_ONCE = 2**20
"""The number of values that are read together: 8 MiB, of which a few copies exist for a moment."""
MOST_APART = 1000
"""The largest distance between the numbers of neighbouring runs that are read together."""


def differing_settings(several: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the keys whose values differ among several settings, each with its values."""
    every = list(several)
    keys = sorted({key for settings in every for key in settings})
    values = {key: list(dict.fromkeys(str(settings.get(key)) for settings in every)) for key in keys}
    return {key: listed for key, listed in values.items() if len(listed) > 1}


class RunInfo(NamedTuple):
    """A run: its number, its sentence's id, the last plan that names it, and the number of its settings."""

    run: int
    id: str | None
    plan: int
    settings: int


class Runs(NamedTuple):
    """Neighbouring runs with the same columns: each field of RunInfo as a list, and values (run, column)."""

    columns: StoredColumns
    run: Sequence[int]
    id: Sequence[str | None]
    plan: Sequence[int]
    settings: Sequence[int]
    values: np.ndarray


def model_of(settings: Mapping[str, Any]) -> Any:
    """Return the model in the settings of a run, or the program if the settings name a program."""
    return settings.get("model", settings.get("program"))


StoredRow = tuple[Any, ...]
"""The fields of RunInfo, the status, and the number of the shape, as they are stored."""


class _Shape(NamedTuple):
    """The columns of runs, and the tables that hold their numbers."""

    columns: StoredColumns
    parts: Sequence[TablePart]


WITHOUT_NUMBERS = _Shape((), ())


class StepOnText(NamedTuple):
    """A step of a training run on one text: its number, its settings' number, the text, and the values."""

    step: int
    settings: int
    sentence: str | None
    columns: StoredColumns
    values: np.ndarray


class FailedRun(NamedTuple):
    """A failed run, its source in the plan, and the error."""

    run: RunInfo
    source: str
    error: str


def _stored_object(text: Any) -> dict[str, Any] | None:
    """Return a JSON object from the store, or None for anything else."""
    try:
        stored = parsed_json(text)
    except (TypeError, ValueError):
        return None
    return stored if isinstance(stored, dict) and all(map(_is_setting, stored.values())) else None


def _is_setting(value: Any) -> bool:
    """Return True for values that tables can hold: numbers of up to 64 bits, strings, and lists of these."""
    if isinstance(value, list):
        return all(map(_is_setting, value))
    return not isinstance(value, dict) and not (isinstance(value, int) and abs(value) >= 2**63)


def _is_text(value: Any) -> bool:
    """Return True for a string or NULL."""
    return value is None or isinstance(value, str)


class Reader:
    """A store that is open for reading: either the runs in the plan of the last batch, or all runs.

    Damaged runs are left out and recorded in `damaged`.
    """

    def __init__(self, connection: sqlite3.Connection, *, all_runs: bool = False) -> None:
        self._connection = connection
        self.all_runs = all_runs
        self.keeps_rows, _, self.plan = read_contents(connection)
        self._chosen = "" if all_runs else " AND plan IS NULL"
        self.damaged: dict[int | None, str] = {}
        """The fault of each damaged run by its number; under None, the fault of data that runs share."""
        self._num_damaged = dict.fromkeys(("done", "failed"), 0)
        # The settings of every experiment in the store, by number.
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
        self._settings_in_use: dict[int, dict[str, Any]] | None = None
        self._shapes: dict[tuple[int, frozenset[str] | None], _Shape | None] = {}
        """The shapes that were read, by their number and the statistics to read."""

    def counts(self) -> dict[str, int]:
        """Return the numbers of completed and failed runs, without runs that were found to be damaged."""
        query = f"SELECT status, count(*) FROM runs WHERE true{self._chosen} GROUP BY status"
        counts = dict(self._connection.execute(query).fetchall())
        return {status: counts.get(status, 0) - num for status, num in self._num_damaged.items()}

    def settings_in_use(self) -> dict[int, dict[str, Any]]:
        """Return the settings of the selected runs by number."""
        if self._settings_in_use is None:
            query = f"SELECT DISTINCT settings FROM runs WHERE true{self._chosen} ORDER BY settings"
            numbers = [number for (number,) in self._connection.execute(query)]
            self._settings_in_use = {n: self.settings[n] for n in numbers if n in self.settings}
        return self._settings_in_use

    def count_earlier(self, settings: int | None = None) -> int:
        """Count the runs, with any settings or with these, that are not in the plan of the last batch."""
        query = (
            "SELECT count(*) FROM runs WHERE typeof(plan) = 'integer' AND settings = coalesce(?, settings)"
        )
        (count,) = self._connection.execute(query, (settings,)).fetchone()
        return int(count)

    def earlier_runs(self) -> str | None:
        """Return a line about runs that are not in the plan of the last batch, or None if there are none."""
        count = self.count_earlier()
        runs = "1 run of an earlier plan" if count == 1 else f"{count:,} runs of earlier plans"
        if not count:
            return None
        if self.all_runs:
            return f"included: {runs} (the plan of the last batch is number {self.plan})"
        return f"left out: {runs} (use --all to include them)"

    def environments(self) -> list[dict[str, str]]:
        """Return the versions that computed the runs."""
        used = f"SELECT environment FROM runs WHERE true{self._chosen}"
        query = f"SELECT versions FROM environments WHERE environment IN ({used}) ORDER BY environment"
        stored = [_stored_object(text) for (text,) in self._connection.execute(query)]
        environments = [versions for versions in stored if versions is not None]
        if len(environments) < len(stored):
            self.damaged[None] = "the versions that computed its runs are damaged"
        return environments

    def statistics(self) -> list[str]:
        """Return the names of all statistics, in the order in which they were first stored."""
        query = "SELECT statistic FROM columns ORDER BY shape, position"
        names = (name for (name,) in self._connection.execute(query))
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def has_layers(self) -> bool:
        """Return True if a selected run has statistics per head of a model."""
        shapes = f"SELECT shape FROM runs WHERE status = 'done'{self._chosen}"
        query = f"SELECT EXISTS (SELECT 1 FROM columns WHERE layer IS NOT NULL AND shape IN ({shapes}))"
        (has_layers,) = self._connection.execute(query).fetchone()
        return bool(has_layers)

    def failed(self) -> Iterator[FailedRun]:
        """Yield the failed runs in order."""
        for *about, status, source, error in self._select("source, error", "status = 'failed'"):
            if run := self._run(about, status, texts=(source, error)):
                yield FailedRun(run, str(source), str(error))

    def done(self, statistics: Collection[str] | None = None) -> Iterator[Runs]:
        """Yield the completed runs in order; with `statistics`, only these columns are read."""
        chosen = None if statistics is None else frozenset(statistics)
        # Runs with a damaged status are selected as well, so that they are reported.
        stored = self._select("shape", "status IS NOT 'failed'")
        while rows := stored.fetchmany(RUNS_AT_ONCE):
            if rows := self._without_damaged(rows, chosen):
                yield from self._runs(rows, chosen)

    def _without_damaged(self, rows: list[StoredRow], chosen: frozenset[str] | None) -> list[StoredRow]:
        """Return the rows of `done` without damaged runs, which are recorded in `damaged`."""
        run, name, plan, settings, status, shape = zip(*rows, strict=True)
        # a few distinct combinations cover all runs
        kinds = [*zip(map(is_number, run), map(_is_text, name), plan, settings, status, shape, strict=True)]
        faults: dict[tuple[Any, ...], str | None] = {}
        for kind in {*kinds}:
            has_number, has_texts, its_plan, its_settings, its_status, its_shape = kind
            has_values = self._shape(its_shape, chosen) is not None
            faults[kind] = self._fault(has_number, has_texts, its_plan, its_settings, its_status, has_values)
        if not any(faults.values()):
            return rows
        for number, kind in zip(run, kinds, strict=True):
            if fault := faults[kind]:
                self._note_damaged(number, fault, kind[4])
        return [row for row, kind in zip(rows, kinds, strict=True) if not faults[kind]]

    def _runs(self, rows: Sequence[StoredRow], chosen: frozenset[str] | None) -> Iterator[Runs]:
        """Yield intact runs with their values."""
        *about, _, numbers = zip(*rows, strict=True)
        shapes = {
            number: shape for number in {*numbers} if (shape := self._shape(number, chosen)) is not None
        }
        widths = np.array([len(shapes[number].columns) for number in numbers])
        for window in _windows(np.array(about[0]), widths):
            yield from self._with_values([part[window] for part in about], numbers[window], shapes)

    def _with_values(
        self, about: Sequence[Sequence[Any]], numbers: Sequence[Any], shapes: Mapping[Any, "_Shape"]
    ) -> Iterator[Runs]:
        """Yield the runs in a window without damaged ones, with neighbours of the same shape together.

        `about` has the fields of RunInfo, `numbers` the number of each run's shape.
        """
        run = about[0]
        parts = [shapes[number].parts for number in {*numbers}]
        stored = NumbersOfRuns(self._connection, parts, range(run[0], run[-1] + 1))
        start = 0
        for number, neighbours in groupby(numbers):
            end = start + len([*neighbours])
            shape, fields = shapes[number], [part[start:end] for part in about]
            start = end
            complete, values = stored.complete_runs(shape.parts, fields[0], len(shape.columns))
            if len(complete) < len(fields[0]):
                for place in {*range(len(fields[0]))} - {*complete.tolist()}:
                    self._note_damaged(fields[0][place], "its statistics are", DONE)
                fields = [[part[place] for place in complete.tolist()] for part in fields]
            if complete.size:
                run_numbers, ids, plans, settings = fields
                yield Runs(shape.columns, run_numbers, ids, plans, settings, values)

    def has_steps(self) -> bool:
        """Return True if the runs are steps of a training run."""
        query = f"SELECT EXISTS (SELECT 1 FROM runs WHERE {IS_STEP})"
        (has_steps,) = self._connection.execute(query).fetchone()
        return bool(has_steps)

    def steps(self) -> Iterator[StepOnText]:
        """Yield the steps of a training run in order, with one item per text."""
        query = (
            "SELECT run, id, coalesce(plan, ?), settings, status, sentence, shape "
            f"FROM runs WHERE {IS_STEP} AND status IS NOT 'failed' ORDER BY CAST(id AS INTEGER), run"
        )
        stored = self._connection.execute(query, (self.plan,))
        for *about, status, sentence, number in stored:
            shape = self._shape(number)
            run = self._run(about, status, texts=(sentence,), has_values=shape is not None)
            if run is None or shape is None:
                continue
            if STEP.fullmatch(run.id or "") is None:
                self.damaged[run.run] = "the number of its step is damaged"
            elif not isinstance(model_of(self.settings[run.settings]), str):
                self.damaged[run.run] = "its settings are damaged"
            else:
                for runs in self._with_values([[field] for field in run], [number], {number: shape}):
                    yield StepOnText(int(run.id or 0), run.settings, sentence, shape.columns, runs.values[0])

    def step_texts(self) -> list[tuple[dict[str, Any], str | None]]:
        """Return the settings with which steps of a training run were measured, each with its text."""
        query = f"SELECT DISTINCT settings, sentence FROM runs WHERE {IS_STEP}"
        stored = self._connection.execute(query)
        return [(self.settings[number], text) for number, text in stored if number in self.settings]

    def texts(self, settings: int) -> dict[int, tuple[str, str | None]]:
        """Return the text and context of each completed run by number, except runs without a stored text."""
        query = (
            f"SELECT run, sentence, context FROM runs WHERE status = ? AND settings = ?{self._chosen} "
            "AND typeof(sentence) = 'text'"
        )
        rows = self._connection.execute(query, (DONE, settings))
        return {
            run: (sentence, context)
            for run, sentence, context in rows
            if context is None or isinstance(context, str)
        }

    def _shape(self, number: Any, statistics: frozenset[str] | None = None) -> "_Shape | None":
        """Return the columns of runs, optionally for some statistics only, or None if they are damaged."""
        if number is None:
            return WITHOUT_NUMBERS
        if not is_number(number):
            return None
        key = number, statistics
        if key not in self._shapes:
            self._shapes[key] = self._read_shape(number, statistics)
        return self._shapes[key]

    def _read_shape(self, number: int, statistics: Collection[str] | None) -> "_Shape | None":
        try:
            columns = read_columns(self._connection, number)
        except Damaged:
            return None
        parts = table_parts(columns)
        known = {table: {*table.statistics(self._connection)} for table in NUMBER_TABLES}
        if not parts or not all(known[each.table].issuperset(map(quoted, each.statistics)) for each in parts):
            return None
        if statistics is None:
            return _Shape(columns, parts)
        chosen = np.array([column.statistic in statistics for column in columns], dtype=bool)
        places = np.cumsum(chosen) - 1
        some = (part.only(chosen) for part in parts)
        return _Shape(
            tuple(compress(columns, chosen)),
            [part._replace(columns=places[part.columns]) for part in some if part.statistics],
        )

    def _run(
        self,
        about: Sequence[Any],
        status: Any,
        *,
        texts: Sequence[Any] = (),
        has_values: bool = False,
    ) -> RunInfo | None:
        """Return the run with these fields, or None if it is damaged or has no values."""
        run, name, plan, settings = about
        has_texts = all(map(_is_text, (name, *texts)))
        fault = self._fault(is_number(run), has_texts, plan, settings, status, has_values)
        if fault is None:
            return RunInfo(run, name, plan, settings)
        self._note_damaged(run, fault, status)
        return None

    def _fault(
        self, has_number: bool, has_texts: bool, plan: Any, settings: Any, status: Any, has_values: bool
    ) -> str | None:
        """Return the damaged part of a run with its verb, such as `its plan is`, or None if it is intact."""
        if not has_number:
            return "its number is"
        if status not in ("done", "failed"):
            return "its status is"
        if not has_texts:
            return "its texts are"
        if not is_number(plan):
            return "its plan is"
        if settings not in self.settings:
            return "its settings are"
        return "its statistics are" if status == "done" and not has_values else None

    def _note_damaged(self, run: Any, fault: str, status: Any) -> None:
        if run not in self.damaged and status in self._num_damaged:
            self._num_damaged[status] += 1
        self.damaged[run] = f"{fault} damaged"

    def _select(self, columns: str, where: str) -> sqlite3.Cursor:
        """Select the runs that meet a condition, in order:

        RunInfo's fields, the status, then these columns.
        """
        about = "run, id, coalesce(plan, ?), settings, status"
        query = f"SELECT {about}, {columns} FROM runs WHERE {where}{self._chosen}"
        return self._connection.execute(f"{query} ORDER BY run", (self.plan,))


def _windows(runs: np.ndarray, widths: np.ndarray) -> Iterator[slice]:
    """Yield neighbouring runs to read together, given the number and the value count of each."""
    ends = np.cumsum(widths)
    gaps = np.flatnonzero(np.diff(runs) > MOST_APART) + 1
    start, num_before = 0, 0
    while start < len(runs):
        end = max(start + 1, int(np.searchsorted(ends, num_before + NUMBERS_AT_ONCE, side="right")))
        end = min(end, *gaps[gaps > start][:1].tolist(), len(runs))
        yield slice(start, end)
        start, num_before = end, int(ends[end - 1])


MOST_DAMAGED_LISTED = 3


def _line_on_damaged(path: Path, damaged: Mapping[int | None, str]) -> str:
    """Return the line that names damaged runs, with advice."""
    lines = [what if run is None else f"run {run}: {what}" for run, what in damaged.items()]
    advice = "left out: restore a backup of the store, or start over with --fresh"
    if len(lines) > MOST_DAMAGED_LISTED:
        lines[MOST_DAMAGED_LISTED:] = [f"{len(lines) - MOST_DAMAGED_LISTED:,} more"]
    return f"{path}: {'; '.join(lines)}: {advice}"


@contextmanager
def reading(path: Path, *, all_runs: bool = False) -> Iterator[Reader]:
    """Open a store for reading.

    Raises UserError for a missing file, and RunError if the store cannot be read.

    At the end, RunError is also raised if damaged runs were left out.
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
"""The names of runs."""
TIDY_COLUMNS = ("layer", "head", "batch", "token", "statistic", "value")
"""The columns of the tidy table besides the runs' names and settings."""


def swept_settings(reader: Reader) -> dict[str, str]:
    """Return the settings in which the runs of one experiment differ, with their types.

    A setting named like another column of the tidy table is left out.
    """
    used = reader.settings_in_use().values()
    by_experiment = [
        [settings for settings in used if settings["experiment"] == name]
        for name in dict.fromkeys(settings["experiment"] for settings in used)
    ]
    keys = dict.fromkeys(key for settings in by_experiment for key in differing_settings(settings))
    return {
        key: _column_type([settings.get(key) for settings in used]) for key in keys if key not in TIDY_COLUMNS
    }


def _column_type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return "integer"
    return "number" if kinds <= {int, float} else "text"


def groups_there(reader: Reader) -> list[str]:
    """Return the names by which runs can be grouped: the swept settings, layer and head, and run names."""
    layers = PLACES if reader.has_layers() else PLACES[1:]
    return [*swept_settings(reader), *layers, *RUN_NAMES[: 3 if reader.all_runs else 2]]
