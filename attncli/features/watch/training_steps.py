"""The steps of a training run, stored as runs: one run per text, with the step as its id."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attncli.core.names import HEAD_PATTERNS, STARTS_SPECIAL
from attncli.core.runtime import versions
from attncli.errors import UserError
from attncli.features.record.calls import (
    RECORDED_STATISTICS,
    RecordSpec,
    has_recorded_calls,
    recorded_calls,
)
from attncli.features.watch.results import HeadInTraining, HeadsInTraining, count_name
from attncli.features.watch.training import (
    SUMMARIES,
    HeadsOverSteps,
    head_in_training,
    heads_in_training,
    step_rows,
)
from attncli.records.report import Report
from attncli.records.stored_columns import StoredColumn, StoredColumns, parse_survey_columns, survey_number
from attncli.records.surveys import Stack, TextMean
from attncli.records.values import PLACES, NamedTensor
from attncli.runs.chunks import Chunk, ChunkResult
from attncli.runs.jobs import Item, Job
from attncli.runs.keys import RunKeys, canonical, resolved_settings
from attncli.runs.plan import Plan
from attncli.runs.reading import Reader, StepOnText, model_of
from attncli.runs.report_values import (
    Condition,
    Expectations,
    parse_conditions,
    refuse_unknown,
    refuse_unmeasured,
    values_of,
)
from attncli.runs.store import STEP, Store
from attncli.settings.heads import HeadsSpec

LOSS = StoredColumn("loss")


class WatchedModuleSpec(RecordSpec):
    """A module, named by its class, that `attncli.Watch` calls at each measured step.

    `inputs` are the sizes of its inputs, and `content` is the SHA-256 of their values.
    """

    inputs: str = ""
    content: str = ""


StepSpec = HeadsSpec | WatchedModuleSpec
"""The settings of a measurement: a survey of a text, or a call of any module."""


@lru_cache(maxsize=64)
def _with_loss(columns: StoredColumns) -> StoredColumns:
    """Return the columns with the loss added; cached, so that equal columns are the same object."""
    return (*columns, LOSS)


class MeasuredStep(NamedTuple):
    """The measurement of a step on one text: its settings, the run's key, the columns and the values."""

    step: int
    spec: StepSpec
    key: bytes
    columns: StoredColumns
    values: np.ndarray


def _sentence(spec: StepSpec) -> str | None:
    return spec.sentence if isinstance(spec, HeadsSpec) else None


def step_key(spec: StepSpec, step: int) -> bytes:
    """Return the SHA-256 of the settings, the text and the step."""
    settings = {**resolved_settings(spec), "sentence": _sentence(spec)}
    return sha256(canonical({"experiment": spec.experiment, "settings": settings, "step": step})).digest()


def content_key(spec: HeadsSpec, step: int, commit: str | None = None) -> bytes:
    """Return the key of a checkpoint, from the content of its files in any folder, or from its commit."""
    item = Item(spec, None)
    (key,) = RunKeys(Plan(((item,),))).job_keys(Job((item,), None, 1))
    return sha256(key + canonical(step if commit is None else [step, commit])).digest()


def measured_step(
    step: int, spec: StepSpec, key: bytes, report: Report, loss: float | None = None
) -> MeasuredStep:
    """Return the values of a head survey with the step's loss, if it is known."""
    columns, values = values_of(report)
    measured = MeasuredStep(step, spec, key, columns, values)
    return measured if loss is None else with_loss(measured, loss)


def with_loss(measured: MeasuredStep, loss: float) -> MeasuredStep:
    """Return the step with its loss."""
    columns, values = _with_loss(measured.columns), np.append(measured.values, loss)
    return measured._replace(columns=columns, values=values)


def store_step(store: Store, measured: Sequence[MeasuredStep]) -> None:
    """Store one or more steps in one transaction."""
    chunk, result = [], ChunkResult(environment=versions())
    for number, each in enumerate(measured):
        item = Item(each.spec, f"{STEP}{each.step}", id=str(each.step))
        chunk.append((Job((item,), None, store.last_run() + 1 + number), (each.key,)))
        result.values[number] = each.columns, each.values
    store.write(Chunk(tuple(chunk)), result)


def parse_expectations(texts: Sequence[str], specs: Sequence[StepSpec], flag: str) -> tuple[Condition, ...]:
    """Return the conditions on statistics of heads or steps. Raises UserError for any other name."""
    conditions = parse_conditions(texts, flag, numbers_only=True)
    step_names = (LOSS.statistic, *STEP_COLUMNS)
    head_conditions = [condition for condition in conditions if condition.name not in step_names]
    if isinstance(specs[0], WatchedModuleSpec):
        refuse_unmeasured(head_conditions, [*step_names, *RECORDED_STATISTICS], flag)
    else:
        refuse_unknown(head_conditions, specs, rows=False, flag=flag)
    return conditions


STEP_COLUMNS = ("step", *SUMMARIES, *map(count_name, HEAD_PATTERNS))
"""The numbers of a step that are computed from its heads; the loss is stored separately."""


def broken_expectations(
    expectations: Expectations, step: int, columns: StoredColumns, values: np.ndarray
) -> list[str]:
    """Return a line per condition that fails, such as `step 300: expected max_score < 100: got 132.4 ...`."""
    if any(condition.name in STEP_COLUMNS for condition in expectations.conditions):
        steps = StoredSteps({})
        steps.add(StepOnText(step, 0, None, columns, values))
        (row,) = step_rows(steps.stacks(), None)
        numbers = [np.nan if number is None else number for number in row.numbers().values()]
        columns, values = _with_row(columns, tuple(row)), np.append(values, numbers)
    return [f"step {step}: {line}" for line in expectations.broken(columns, values)]


@lru_cache(maxsize=64)
def _with_row(columns: StoredColumns, names: tuple[str, ...]) -> StoredColumns:
    return (*columns, *map(StoredColumn, names))


def broken_at(expectations: Expectations, measured: Sequence[MeasuredStep]) -> list[str]:
    """Return a line for each condition that does not hold at a step, on each of its texts."""
    return [
        line
        for each in measured
        for line in broken_expectations(expectations, each.step, each.columns, each.values)
    ]


class _Places(NamedTuple):
    """The positions of each stack's statistics, and of single numbers, in the columns of a run."""

    heads: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]
    single: Mapping[str, int]


@lru_cache(maxsize=64)
def _column_places(columns: StoredColumns) -> _Places:
    by_stack: dict[str, dict[str, list[tuple[int, int, int]]]] = {}
    single = {column.statistic: place for place, column in enumerate(columns) if column.head is None}
    for (stack, statistic, *_), place, layer, head in parse_survey_columns(columns).all_weights:
        if layer is not None and head is not None:
            by_stack.setdefault(stack, {}).setdefault(statistic, []).append((place, layer, head))
    heads = {
        stack: {name: tuple(np.array(places).T) for name, places in names.items()}
        for stack, names in by_stack.items()
    }
    return _Places(heads, single)


MAIN_STATISTICS = tuple(
    dict.fromkeys(
        (
            *("induction", "previous_token", "max_score", "entropy", "sink_mass"),
            *(pattern.statistic for pattern in HEAD_PATTERNS.values()),
        )
    )
)
"""The head statistics that step summaries and patterns need."""


@dataclass
class StoredSteps:
    """The steps of a training run on one text, added one by one from a store, and their settings."""

    settings: dict[str, Any]
    statistics: Sequence[str] | None = MAIN_STATISTICS
    """The statistics to read; None for all."""
    steps: list[int] = field(default_factory=list)
    are_calls: bool = False
    """True for recorded calls of a program, each with different inputs."""
    grids: dict[str, dict[str, list[np.ndarray]]] = field(default_factory=dict)
    single: list[dict[str, float]] = field(default_factory=list)

    def add(self, step: StepOnText) -> None:
        """Add a step."""
        places = _column_places(step.columns)
        self.steps.append(step.step)
        self.single.append({name: float(step.values[place]) for name, place in places.single.items()})
        for stack, names in places.heads.items():
            some = names.values()
            shape = tuple(max(int(each[axis].max()) for each in some) + 1 for axis in (1, 2))
            for name, (place, layer, head) in names.items():
                if self.statistics is None or name in self.statistics:
                    grid = np.full(shape, np.nan)
                    grid[layer, head] = step.values[place]
                    self.grids.setdefault(stack, {}).setdefault(name, []).append(grid)

    @property
    def name(self) -> str:
        """The name of the model's folder, or the program that was recorded."""
        name = str(model_of(self.settings))
        return Path(name).name if "model" in self.settings else name

    def losses(self) -> list[float | None] | None:
        """Return the loss of each step (None if it is unknown), or None if no step has a loss."""
        losses = [single.get(LOSS.statistic) for single in self.single]
        return None if losses.count(None) == len(losses) else losses

    def stacks(self) -> list[HeadsOverSteps]:
        """Return the statistics of each stack that all steps have."""
        last = self.single[-1]
        stacks = []
        for stack, grids in self.grids.items():
            num_rows, even, starts_special = {}, {}, False
            for name, value in last.items():
                number = survey_number(name)
                if number is None or number.stack != stack or number.without_first:
                    continue
                if number.statistic == STARTS_SPECIAL:
                    starts_special = bool(value)
                elif number.counts_rows:
                    num_rows[number.statistic] = int(value)
                elif number.is_even:
                    even[number.statistic] = TextMean.of(value)
            names = [*(name for name in MAIN_STATISTICS if name in grids), *grids]
            whole = {name: np.stack(grids[name]) for name in names if len(grids[name]) == len(self.steps)}
            rows = Stack(stack, num_rows, starts_special, even)
            stacks.append(HeadsOverSteps(rows, tuple(self.steps), whole))
        return stacks

    def all_heads(self) -> HeadsInTraining:
        """Return the result for all heads over the steps."""
        return heads_in_training(self.stacks(), self.losses())

    def single_head(self, layer: int, head: int) -> HeadInTraining:
        """Return the result for one head over the steps. Raises UserError if no stack has it."""
        stacks = self.stacks()
        with_head = [over for over in stacks if over.has_head(layer, head)]
        if not with_head:
            layers, heads = np.max([over.is_head.shape for over in stacks], axis=0).tolist()
            valid = f"layers 0 to {layers - 1}, heads 0 to {heads - 1}"
            raise UserError(f"--head: must be a head of {self.name}: {valid} (got {layer}:{head})")
        return head_in_training(with_head, self.losses(), layer, head)

    def tensors(self) -> dict[str, NamedTensor]:
        """Return each statistic by step, layer and head, and by stack if there are several stacks."""
        stacks = self.stacks()
        return {
            f"{name} {over.stack.name}" if len(stacks) > 1 else name: NamedTensor(("step", *PLACES), values)
            for over in stacks
            for name, values in over.statistics.items()
        }


def text_key(settings: Mapping[str, Any], sentence: str | None) -> bytes:
    """Return a key that is equal for measurements with the same settings on the same text, for any model."""
    return canonical([{**settings, "model": None}, sentence])


def run_settings(spec: StepSpec) -> dict[str, Any]:
    """Return the settings of a run in a store."""
    return {"experiment": spec.experiment, **resolved_settings(spec)}


def spec_text_key(spec: StepSpec) -> bytes:
    """Return the `text_key` of a spec."""
    return text_key(run_settings(spec), _sentence(spec))


def has_steps(reader: Reader) -> bool:
    """Return True if a store has steps of a training run, or recorded calls, which count as steps."""
    return reader.has_steps() or has_recorded_calls(reader)


def steps_in(reader: Reader) -> Iterator[StepOnText]:
    """Yield the steps of the training run in a store, or else its recorded calls."""
    return reader.steps() if reader.has_steps() else recorded_calls(reader)


def stored_steps(reader: Reader, statistics: Sequence[str] | None = MAIN_STATISTICS) -> list[StoredSteps]:
    """Return the steps in a store, grouped by text; the checkpoints of a run are in one group.

    Recorded calls are grouped by program and modules.
    """
    by_text: dict[tuple[bytes, StoredColumns], StoredSteps] = {}
    are_calls = not reader.has_steps()
    for step in steps_in(reader):
        settings = reader.settings[step.settings]
        key = text_key(settings, step.sentence), (step.columns if are_calls else ())
        if key not in by_text:
            text_settings = {**settings, "sentence": step.sentence}
            by_text[key] = StoredSteps(text_settings, statistics, are_calls=are_calls)
        if "model" in settings:
            by_text[key].settings["model"] = settings["model"]
        by_text[key].add(step)
    return list(by_text.values())
