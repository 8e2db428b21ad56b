"""`attn watch`, and `attn heads --checkpoints`: the heads of a model over the steps of its training."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from glob import glob
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.commands.command import (
    COLOR,
    DEBUG,
    FORMAT,
    OPEN,
    OUTPUT,
    PRECISION,
    SCALE_COLORS,
    SHOW,
    TITLE,
    Command,
    argument,
    color_depth,
    height,
    option,
    width,
)
from attncli.commands.output import Destination, ProgressLine, progress_line
from attncli.core.names import NamedHead, named_head
from attncli.errors import DONE, FAILED, SOME_FAILED, UserError
from attncli.files import LOG_BYTES, read_whole
from attncli.models.folder import id_and_revision
from attncli.plain_text import counted, plain_text
from attncli.report import PLACES, Cell, NamedTensor, Report, Row, Statistic, Table
from attncli.runs.reading import Reader, reading
from attncli.runs.report_values import Condition, Expectations, parse_conditions
from attncli.runs.store import Store, open_store
from attncli.runs.store_files import create_file, is_driven
from attncli.runs.stored_columns import StoredColumns
from attncli.views import load_view

if TYPE_CHECKING:
    from attncli.measure.training import HeadsOverSteps
    from attncli.runs.training_steps import StoredSteps
    from attncli.settings.heads import HeadsSpec


EXAMPLES = (
    "attn watch run.db",
    "attn watch run.db --head 5:1",
    'attn watch run.db --expect "max_score < 100"',
    "attn watch run.db -o run.html",
    "attn watch run.db -o steps.csv",
)
STORE = argument(
    "store",
    "What attncli.Watch, or attn heads --checkpoints -o FILE.db, keeps.",
    "STORE",
    reads_file=True,
)
SHOW_STEPS = replace(
    SHOW,
    help="Parts of the report instead of its first screen: steps, patterns, changes, heads, a statistic by "
    "its name, as entropy, statistics, all; in csv and parquet another table.",
    choices=("steps", "patterns", "changes", "heads", "statistics", "all"),
    everyday="steps, patterns, changes, heads, entropy, ..., all",
)
HEAD = option("--head", "Show one head over the steps.", "LAYER:HEAD", everyday="one head over the steps")
EXPECT = option(
    "--expect",
    'A condition that every head must meet at every step, or exit 1: "max_score < 100"; repeatable.',
    "CONDITION",
    kind=list[str],
    everyday='what every head must meet: "max_score < 100"',
)
SECONDS_BETWEEN, SECONDS_BETWEEN_REVISIONS = 1.0, 60.0
"""How often a folder, or the hub, is looked at."""
LIVE = "Live. Ctrl-C leaves this screen; the training goes on."
FOLLOWED = "Waits for new checkpoints. Ctrl-C ends it."


def reports_of(path: Path, reader: Reader, head: str | None = None) -> list[Report]:
    """A report for each text that the steps of a store were measured on.

    UserError for a store of something else, and for a head that the model does not have.
    """
    from attncli.runs.training_steps import stored_steps

    if not reader.has_steps():
        instead = f"attn results {path} shows what it has"
        raise UserError(f"{path}: holds no steps of a training run: {instead}")
    environment = next(iter(reader.environments()), {})
    if head is None:
        return [_report(path, steps, environment) for steps in stored_steps(reader)]
    _, layer, number = _head_named(head)
    return [
        _report_of_head(path, steps, environment, layer, number)
        for steps in stored_steps(reader, statistics=None)
    ]


def _head_named(head: str) -> NamedHead:
    try:
        return named_head(head)
    except ValueError as error:
        raise UserError(f"--head: {error}") from None


def _report(path: Path, steps: "StoredSteps", environment: Mapping[str, str]) -> Report:
    from attncli.measure.training import changes, forming, step_rows

    stacks = steps.stacks()
    rows = step_rows(stacks, steps.losses())
    patterns = [row for over in stacks for row in forming(over)]
    tensors = {
        name: NamedTensor(("point",), np.array([row[name] for row in rows], dtype=np.float64))
        for name in rows[0]
        if not name.endswith("_heads")
    }
    tensors |= _grids(stacks)
    statistics: dict[str, Statistic] = {
        "steps": Table(rows),
        "patterns": Table(row for row in patterns if any(row["count"])),
        "changes": Table(row for over in stacks for row in changes(over)),
        "heads": Table(row for over in stacks for row in over.rows(-1)),
    }
    never = dict.fromkeys(row["pattern"] for row in patterns if not any(row["count"]))
    notes = [f"No head at any step: {', '.join(never)}."] if never else []
    num_heads = sum(int(over.is_head.sum()) for over in stacks)
    return _made(path, steps, environment, tensors, statistics, notes, counted(num_heads, "head"))


def _made(
    path: Path,
    steps: "StoredSteps",
    environment: Mapping[str, str],
    tensors: Mapping[str, NamedTensor],
    statistics: Mapping[str, Statistic],
    notes: Sequence[str],
    what: str,
) -> Report:
    first, last = steps.steps[0], steps.steps[-1]
    named = ("probe", "num_tokens", "sentence", "seed")
    spec = {"store": str(path), "model": steps.name} | {key: steps.settings.get(key) for key in named}
    span = f"step {last}" if first == last else f"{len(steps.steps):,} steps from {first} to {last}"
    return Report(
        "watch",
        spec,
        environment,
        tensors=tensors,
        statistics={name: found for name, found in statistics.items() if found},
        notes=tuple(notes),
        about=f"{steps.name}, {what}: {span}.",
    )


def _grids(stacks: Sequence["HeadsOverSteps"]) -> dict[str, NamedTensor]:
    """Each statistic by step, layer and head; of a model of several stacks a grid for each of them."""
    return {
        f"{name} {over.stack.name}" if len(stacks) > 1 else name: NamedTensor(("step", *PLACES), values)
        for over in stacks
        for name, values in over.statistics.items()
    }


def _report_of_head(
    path: Path, steps: "StoredSteps", environment: Mapping[str, str], layer: int, head: int
) -> Report:
    """Every statistic of a head over the steps, and its pattern at each."""
    from attncli.measure.training import PATTERN_NAMES, named_patterns

    stacks = steps.stacks()
    with_head = [
        over
        for over in stacks
        if layer < over.is_head.shape[0] and head < over.is_head.shape[1] and over.is_head[layer, head]
    ]
    if not with_head:
        layers, heads = np.max([over.is_head.shape for over in stacks], axis=0).tolist()
        known = f"layers 0 to {layers - 1}, heads 0 to {heads - 1}"
        raise UserError(f"--head: must be a head of {steps.name}: {known} (got {layer}:{head})")
    rows: list[dict[str, Cell]] = [{"step": step} for step in steps.steps]
    for place, loss in enumerate(steps.losses() or ()):
        rows[place]["loss"] = loss
    for over in with_head:
        after = f" {over.stack.name}" if len(with_head) > 1 else ""
        named = named_patterns(over)[:, layer, head]
        for place, row in enumerate(rows):
            row[f"pattern{after}"] = PATTERN_NAMES[named[place]]
            row |= {
                f"{name}{after}": float(values[place, layer, head])
                for name, values in over.statistics.items()
                if np.isfinite(values[:, layer, head]).any()
            }
    tensors = {
        name: NamedTensor(("point",), np.array([row[name] for row in rows], dtype=np.float64))
        for name in rows[0]
        if not name.startswith("pattern")
    }
    found = _made(path, steps, environment, tensors, {"head": Table(rows)}, (), f"head {layer}:{head}")
    return replace(found, spec={**found.spec, "head": f"{layer}:{head}"})


def check(reader: Reader, conditions: Sequence[Condition], reports: Sequence[Report]) -> int:
    """How many lines say that a condition does not hold at a step; each is printed on standard error.

    What no step has a number of is looked for in the tables of the reports, as `pattern`. A condition on
    something that neither has is a line, too.
    """
    from attncli.runs.training_steps import OF_A_STEP, broken_expectations

    if not conditions:
        return 0
    first = next(reader.steps(), None)
    stored = [column.statistic for column in (() if first is None else first.columns)]
    of_steps = {*OF_A_STEP, "loss", *stored}
    tables = {
        each: rows
        for each in conditions
        if each.name not in of_steps and (rows := _rows_with(each.name, reports))
    }
    expectations = Expectations([each for each in conditions if each not in tables])
    if texts := [each for each in expectations.conditions if each.number is None and each.name in of_steps]:
        raise UserError(*(f"--expect '{each}': must end in a number (got {each.text})" for each in texts))
    lines = [
        line
        for step in reader.steps()
        for line in broken_expectations(expectations, step.step, step.columns, step.values)
    ]
    lines += [line for each, rows in tables.items() for line in _broken_rows(each, rows)]
    known = [name for name in (*OF_A_STEP, *stored, *_columns(reports)) if "." not in name]
    lines += expectations.unmet(list(dict.fromkeys(known)), "; attn export STORE has every one")
    for line in lines:
        print(plain_text(line), file=sys.stderr)
    return len(lines)


TABLES = ("head", "heads", "patterns", "changes")
OF_TABLES = (
    "pattern",
    "stack",
    "kind",
    "layer",
    "head",
    "first_step",
    "threshold",
    "heads",
    "before",
    "after",
)
"""Their columns that are no numbers of each step."""


def _columns(reports: Sequence[Report]) -> list[str]:
    """Of the TABLES of the reports, without those that are numbers of each step."""
    tables = (report.table(name) for report in reports for name in TABLES)
    return [column for table in tables if table for column in table[0] if column in OF_TABLES]


def _rows_with(column: str, reports: Sequence[Report]) -> list[Row]:
    """The rows of the first of the TABLES, in each report, that has this column."""
    tables = ([report.table(name) for name in TABLES] for report in reports)
    first = (next((table for table in of_report if table and column in table[0]), ()) for of_report in tables)
    return [row for table in first for row in table]


def _broken_rows(condition: Condition, rows: Sequence[Row]) -> Iterator[str]:
    """A line where rows of a table do not meet a condition, with the first of them."""
    wrong = [row for row in rows if not condition.holds(row[condition.name])]
    if wrong:
        first, more = wrong[0], f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        step = f"step {first['step']}: " if isinstance(first.get("step"), int) else ""
        is_head = first.get("layer") is not None and first.get("head") is not None
        where = f" in {first['layer']}:{first['head']}" if is_head else ""
        got = first[condition.name]
        yield f"{step}expected {condition}: got {'none' if got is None else got}{where}{more}"


def show_watch(store: str, head: str | None, expect: Sequence[str], **flags: Any) -> int:
    """Write what a store has; on a terminal again and again, while something is written into it."""
    conditions = parse_conditions(expect, "--expect", numbers_only=False)
    to = Destination(**flags, is_stored=True)
    path = Path(store)
    if _is_live(to):
        _wait_for(path)
    if _is_live(to) and path.exists() and is_driven(path):
        with drawing(to) as draw:
            while is_driven(path):
                with reading(path) as reader:
                    draw(reports_of(path, reader, head) if reader.has_steps() else [], LIVE)
                time.sleep(SECONDS_BETWEEN)
    with progress_line() as line, reading(path) as reader:
        line.begin(f"reading {path.name}")
        reports = reports_of(path, reader, head)
        broken = check(reader, conditions, reports)
        line.clear()
        _write(reports, to)
    return FAILED if broken else DONE


def _wait_for(path: Path) -> None:
    """Wait, where somebody sees a line that says so, until a training run makes its store, or Ctrl-C."""
    with progress_line() as line:
        if not line.is_terminal or path.exists() or not path.parent.is_dir():
            return
        line.begin(f"{path.name}: no such file yet: waiting for the training run, Ctrl-C ends")
        while not path.exists():
            time.sleep(SECONDS_BETWEEN)


def _write(reports: Sequence[Report], to: Destination) -> None:
    to.write(reports, several=len(reports) > 1)


def _is_live(to: Destination) -> bool:
    return to.format == "table" and to.path is None and not to.display.show and sys.stdout.isatty()


ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
TOP, REST_OF_LINE, REST = "\x1b[H", "\x1b[K", "\x1b[J"


@contextmanager
def drawing(to: Destination) -> Iterator[Callable[[Sequence[Report], str], None]]:
    """A screen of its own, which is drawn over while it is open, until Ctrl-C."""
    write = load_view("table")
    shown = ""

    def draw(reports: Sequence[Report], line: str) -> None:
        nonlocal shown
        columns, lines = width(True), height(True)
        each = None if lines is None else max(1, (lines - 1) // max(1, len(reports)) - (len(reports) > 1))
        display = replace(to.display, width=columns, height=each, colors=color_depth(to.color, True))
        stream = StringIO()
        write(reports, stream, display)
        text = f"{stream.getvalue()}{line[: (columns or 80) - 1]}"
        if text != shown:
            shown = text
            rows = text.split("\n")[:lines]
            sys.stdout.write(TOP + f"{REST_OF_LINE}\n".join(rows) + REST_OF_LINE + REST)
            sys.stdout.flush()

    sys.stdout.write(ENTER)
    try:
        with suppress(KeyboardInterrupt):
            yield draw
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


command = partial(
    Command,
    run=show_watch,
    parameters=[
        STORE,
        HEAD,
        EXPECT,
        FORMAT,
        OUTPUT,
        OPEN,
        TITLE,
        SHOW_STEPS,
        PRECISION,
        COLOR,
        SCALE_COLORS,
        DEBUG,
    ],
    examples=EXAMPLES,
)


STEP, NUMBER = re.compile(r"step\D?(\d+)"), re.compile(r"\d+")
REVISIONS = re.compile(r"[\w.-]+(/[\w.-]+)?@[^@]+")
"""A hub id and a pattern of its revisions."""
SETTLED_SECONDS = 2.0
"""How long the files of a new checkpoint must not have changed: else it is still being written."""
NOT_FOR_CHECKPOINTS = (
    *("model", "texts", "text_group", "relations", "num_examples", "sort", "ascending", "top", "table"),
    *("statistic", "rollout", "maps", "full"),
)


def step_of(name: str) -> int | None:
    """The number behind `step` in a name, else its last number; None where it has none."""
    numbers = STEP.findall(name) or NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


class Checkpoint(NamedTuple):
    """A folder, or ID@REVISION of a model on the hub with the commit of that revision."""

    model: str
    commit: str | None = None

    @property
    def name(self) -> str:
        """The last part."""
        return Path(self.model).name

    @property
    def folder(self) -> Path | None:
        """None where it is on the hub."""
        return Path(self.model) if self.commit is None else None


def run_of(model: str) -> str:
    """Where the checkpoints of the same run are: the folder above, or a hub id."""
    is_revision = REVISIONS.fullmatch(model) and not Path(model).exists()
    return id_and_revision(model)[0] if is_revision else str(Path(model).resolve().parent)


def found_checkpoints(patterns: Sequence[str], *, allow_download: bool) -> dict[int, Checkpoint]:
    """What patterns name, by step, in order: folders of models, else revisions of a hub id.

    UserError for a name without a number, for two of the same step, and for a hub id without downloads.
    """
    names: dict[str, Checkpoint] = {}
    for pattern in patterns:
        whole = os.path.expanduser(pattern)  # noqa: PTH111 - as in the next line
        # A name may hold brackets. pathlib has no absolute patterns.
        paths = [Path(whole)] if Path(whole).is_dir() else [*map(Path, glob(whole))]  # noqa: PTH207
        folders = [path for path in paths if path.is_dir() and (path / "config.json").is_file()]
        names |= {str(folder): Checkpoint(str(folder)) for folder in folders}
        if not paths and REVISIONS.fullmatch(pattern):
            if not allow_download:
                raise UserError(f"--checkpoints: no such folder: {pattern} (a hub id needs --allow-download)")
            names |= _found_revisions(pattern)
    found: dict[int, Checkpoint] = {}
    for name, checkpoint in sorted(names.items()):
        step = step_of(checkpoint.name)
        if step is None:
            raise UserError(f"--checkpoints: {name}: a name with a step is needed, as checkpoint-500")
        if step in found:
            raise UserError(f"--checkpoints: {found[step].model} and {name} are both of step {step}")
        found[step] = checkpoint
    return dict(sorted(found.items()))


def _found_revisions(pattern: str) -> dict[str, Checkpoint]:
    from attncli.models.loading import hub_revisions

    name, wanted = id_and_revision(pattern)
    try:
        known = hub_revisions(name)
    except UserError as error:
        raise UserError(*(f"--checkpoints: {line}" for line in error.lines)) from None
    found = {
        f"{name}@{revision}": Checkpoint(f"{name}@{revision}", commit)
        for revision, commit in known.items()
        if fnmatchcase(revision, wanted)
    }
    if not found:
        some = ", ".join([*known][:MOST_NAMED]) + (", ..." if len(known) > MOST_NAMED else "")
        raise UserError(f"--checkpoints: no revision of {name} is named {wanted}: it has {some}")
    return found


MOST_NAMED = 5


def is_settled(folder: Path | None) -> bool:
    """Whether nothing in a folder has changed for a while; not where it is being removed."""
    if folder is None:  # a revision is there whole
        return True
    try:
        changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except FileNotFoundError:
        return False
    return time.time() - changed > SETTLED_SECONDS


UNREADABLE_LOG = (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""What a log raises that is too large, no file of text, or says something else than losses of steps."""


def logged_loss(folder: Path | None, step: int) -> float | None:
    """The loss in the trainer_state.json of a checkpoint; None where none was logged at that step."""
    path = None if folder is None else folder / "trainer_state.json"
    if path is None or not path.is_file():
        return None
    try:
        history = json.loads(read_whole(path, LOG_BYTES))["log_history"]
        losses = [row["loss"] for row in history if "loss" in row and row["step"] == step]
        return float(losses[-1]) if losses else None
    except UNREADABLE_LOG:  # of another program, or cut off: the loss is all that is lost
        return None


def survey_checkpoints(
    patterns: Sequence[str],
    spec_of: "Callable[[str], HeadsSpec]",
    to: Destination,
    *,
    kept: Path | None,
    head: str | None,
    expect: Sequence[str],
    follow: bool,
    fresh: bool,
    allow_download: bool,
) -> int:
    """Survey each checkpoint that the store does not have yet, then show all; or go on with new ones.

    Without a store to be `kept` one is used that is removed at the end. `spec_of` gives the settings for a
    model.
    """
    from attncli.runs.training_steps import parse_expectations

    if head is not None:
        _head_named(head)
    find = partial(found_checkpoints, patterns, allow_download=allow_download)
    found = find()
    if not found and not follow:
        named = " or ".join(patterns)
        inside = next((name for name in patterns if Path(name).is_dir()), None)
        hint = "" if inside is None else f": of those in it, '{Path(inside) / '*'}'"
        raise UserError(f"--checkpoints: no folder of a model is named {named}{hint}")
    conditions = parse_conditions(expect, "--expect", numbers_only=False)
    if found:
        of_steps = [text for text, each in zip(expect, conditions, strict=True) if each.name not in OF_TABLES]
        parse_expectations(of_steps, [spec_of(next(iter(found.values())).model)], "--expect")
    with ExitStack() as stack:
        path = kept
        if path is None:
            path = Path(stack.enter_context(TemporaryDirectory(prefix="attn-"))) / "checkpoints.db"
            create_file(path, rows=False, weights=False)
        line = stack.enter_context(progress_line())
        store = stack.enter_context(open_store(path, fresh=fresh, rows=False, weights=False))
        surveys = _Checkpoints(store, spec_of, line)
        surveys.take({step: each for step, each in found.items() if not follow or is_settled(each.folder)})
        line.clear()
        if follow:
            surveys.follow(find, path, head, to)
        with reading(path) as reader:
            if not reader.has_steps():
                return SOME_FAILED if surveys.failed else DONE
            reports = _named_reports(kept, path, reader, head)
            broken = check(reader, conditions, reports)
            _write(reports, to)
    return FAILED if broken else SOME_FAILED if surveys.failed else DONE


def _named_reports(kept: Path | None, path: Path, reader: Reader, head: str | None) -> list[Report]:
    reports = reports_of(path, reader, head)
    if kept is not None:
        return reports
    return [replace(report, spec={**report.spec, "store": None}) for report in reports]


class StoreOfOthers(UserError):
    """A store that the steps of these checkpoints cannot be added to."""


def _heads_of(columns: StoredColumns) -> frozenset[tuple[int | None, int | None]]:
    return frozenset((column.layer, column.head) for column in columns)


class _Checkpoints:
    """Surveys the checkpoints of a run into a store, each once."""

    def __init__(self, store: Store, spec_of: "Callable[[str], HeadsSpec]", line: ProgressLine) -> None:
        self.store, self.spec_of, self.line = store, spec_of, line
        self.done: set[Checkpoint] = set()
        self.failed: set[Checkpoint] = set()
        self.is_checked = False
        self.known: set[str] = set()
        self.stored: dict[int, str] = {}
        self.heads: frozenset[tuple[int | None, int | None]] | None = None

    def take(self, found: Mapping[int, Checkpoint]) -> int:
        """Survey those that the store does not have; how many were surveyed now. An error is told."""
        from attncli.runs.runner import Session
        from attncli.runs.training_steps import content_key, measured_step, store_step

        count = 0
        for step, checkpoint in found.items():
            if checkpoint in self.done | self.failed:
                continue
            try:
                spec = self.spec_of(checkpoint.model)
                self.line.begin(f"reading {checkpoint.name}, to know it again")
                self._check_text(spec)
                key = content_key(spec, step, checkpoint.commit)
                if key in self.store.steps():
                    self.known.add(run_of(checkpoint.model))
                else:
                    self.line.begin(f"step {step}: {checkpoint.name}")
                    self._check_run(checkpoint)
                    report = Session().run(spec, reseed=True)
                    measured = measured_step(step, spec, key, report, logged_loss(checkpoint.folder, step))
                    self._check_heads(measured.columns)
                    self.store.remove_steps(step, step)  # of a checkpoint that was there before
                    store_step(self.store, [measured])
                    count += 1
                self.done.add(checkpoint)
            except StoreOfOthers:
                raise
            except UserError as error:
                self.failed.add(checkpoint)
                for text in error.lines:
                    self.line.tell(f"{checkpoint.model}: {text}")
        return count

    def _check_text(self, spec: "HeadsSpec") -> None:
        """UserError for a store of something else, or of steps on another text."""
        from attncli.runs.training_steps import text_key, text_of

        if self.is_checked:
            return
        with reading(self.store.path) as reader:
            stored = {text_key(*text) for text in reader.texts_of_steps()}
            for step in reader.steps():
                self.stored[step.step] = str(reader.settings[step.settings]["model"])
                self.heads = _heads_of(step.columns)
        if self.store.last_run() and stored != {text_of(spec)}:
            others = "steps on another text, or with other settings" if stored else "runs that are no steps"
            raise StoreOfOthers(f"-o {self.store.path}: has {others}: give another name, or --fresh")
        self.is_checked = True

    def _check_run(self, checkpoint: Checkpoint) -> None:
        """UserError before a step is added to those of `Watch`, or of the checkpoints of another run.

        A folder that was moved is known by the checkpoints in it that are as they were.
        """
        run = run_of(checkpoint.model)
        for step, model in self.stored.items():
            is_checkpoint = step_of(Path(model).name) == step
            if not is_checkpoint or (run not in self.known and run_of(model) != run):
                others = f"checkpoints in {run_of(model)}" if is_checkpoint else "the steps of attncli.Watch"
                raise StoreOfOthers(f"-o {self.store.path}: has {others}: give another name, or --fresh")

    def _check_heads(self, columns: StoredColumns) -> None:
        """UserError for a checkpoint of another model."""
        heads = _heads_of(columns)
        if self.heads is not None and heads != self.heads:
            raise UserError("has other layers and heads than the steps before: it is of another model")
        self.heads = heads

    def follow(
        self, find: Callable[[], dict[int, Checkpoint]], path: Path, head: str | None, to: Destination
    ) -> None:
        """Go on with new checkpoints until Ctrl-C, and show all after each."""
        is_live = _is_live(to)
        with drawing(to) if is_live else _until_interrupted() as draw:
            is_due = is_live
            while True:
                if is_due:
                    with reading(path) as reader:
                        reports = reports_of(path, reader, head) if reader.has_steps() else []
                    if is_live:
                        draw(reports, FOLLOWED)
                    elif to.path is not None:
                        _write(reports, to)
                are_on_hub = any(each.commit for each in self.done | self.failed)
                time.sleep(SECONDS_BETWEEN_REVISIONS if are_on_hub else SECONDS_BETWEEN)
                new = {
                    step: each
                    for step, each in find().items()
                    if each not in self.done | self.failed and is_settled(each.folder)
                }
                is_due = bool(self.take(new))


@contextmanager
def _until_interrupted() -> Iterator[Any]:
    with suppress(KeyboardInterrupt):
        yield None
