"""`attn watch`: a model's heads over the steps of its training, from a store or from checkpoints."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.commands.command import (
    COLOR,
    CONFIG,
    DEBUG,
    FIGURE_WIDTH,
    FORMAT,
    FRESH,
    OPEN,
    OUTPUT,
    PRECISION,
    SCALE_COLORS,
    SHOW,
    TITLE,
    Command,
    argument,
    color_depth,
    flag,
    given_settings,
    height,
    is_file,
    option,
    refuse_flags,
    resolved_file,
    setting_options,
    settings_from_flags,
    width,
    with_piped_text,
)
from attncli.commands.expectations import exit_code
from attncli.commands.output import Destination, checked_store, progress_line
from attncli.core.names import NamedHead, named_head
from attncli.errors import UserError
from attncli.features.watch.results import COUNT, HeadAtStep, PatternChange, PatternOverSteps, StepOfHead
from attncli.records.columns import Result
from attncli.records.report import NamedTensor, Report, Row
from attncli.runs.reading import Reader, reading
from attncli.runs.report_values import Condition, Expectations, parse_conditions
from attncli.runs.store import open_store
from attncli.runs.store_files import create_file, is_driven
from attncli.settings.fields import Given, checked_spec
from attncli.settings.heads import HeadsSpec
from attncli.system.files import is_store_name
from attncli.system.plain_text import counted, note
from attncli.views import load_view

if TYPE_CHECKING:
    from attncli.features.watch.checkpoints import Checkpoint, CheckpointSurveys
    from attncli.features.watch.training_steps import StoredSteps


EXAMPLES = (
    "attn watch",
    "attn watch run.db",
    "attn watch 'run/checkpoint-*' --follow",
    "attn watch run.db --head 5:1",
    'attn watch run.db --expect "max_score < 100"',
    "attn watch run.db -o steps.csv",
    "attn watch 'run/checkpoint-*' --sentence \"the cat sat because it was tired\" -o heads.db",
)
SHIPPED_RUN = "lessons/learning-to-copy.db"
RUN = argument(
    "run",
    'A store from attn record or from a training loop, "with attncli.Watch(model, tokenizer, '
    "store='run.db') as watch: ... watch.step(step, loss=loss)\"; or checkpoints: folders with a step number "
    "in the name, a quoted pattern that matches them or, with --allow-download, revisions of a hub model, as "
    "ID@step*. [default: a run that ships with attn]",
    "RUN",
    kind=list[str],
    required=False,
    reads_file=True,
)
SHOW_STEPS = replace(
    SHOW,
    help="Parts of the report instead of its first screen: steps, patterns, changes, heads, the name of a "
    "statistic such as entropy, statistics, all; in csv and parquet the table to write.",
    choices=("steps", "patterns", "changes", "heads", "statistics", "all"),
    everyday="steps, patterns, changes, heads, entropy, ..., all",
)
HEAD = option("--head", "Show one head over the steps.", "LAYER:HEAD", everyday="one head over the steps")
EXPECT = option(
    "--expect",
    'Exit 1 unless every head meets the condition at every step: "max_score < 100"; repeatable.',
    "CONDITION",
    kind=list[str],
    everyday='condition for every head: "max_score < 100"',
)
KEEP = replace(
    OUTPUT,
    help="Write to a file, complete or not at all; - is standard output. For checkpoints, FILE.db stores the "
    "measurements: rerun the same command to resume.",
    everyday="write to a file, or store the measurements (.db)",
)
FOLLOW = flag(
    "--follow",
    "For checkpoints: continue with new checkpoints until Ctrl-C. For a store: wait until a training run "
    "creates the store.",
    everyday="wait for new checkpoints, or for a store to appear",
)
NOT_FOR_CHECKPOINTS = (
    *("model", "texts", "text_group", "relations", "num_examples", "sort", "ascending", "top", "table"),
    *("statistic", "rollout", "maps", "full"),
)
"""The settings of a survey that do not apply to steps."""
EVERYDAY = {"sentence": "measure on this text instead of random tokens"}
SETTINGS = [
    replace(parameter, everyday=EVERYDAY.get(parameter.name, ""))
    for parameter in setting_options(HeadsSpec)
    if (parameter.now or parameter.name) not in (*NOT_FOR_CHECKPOINTS, "head")
]
SECONDS_BETWEEN, SECONDS_BETWEEN_REVISIONS = 1.0, 60.0
"""Seconds between checks of a folder, and of the hub."""
EACH_CALL = (
    "Each step is a recorded call, in training or evaluation, on the program's own inputs. To measure the "
    "same inputs at each step, use attncli.Watch(model, inputs=x, store=...) in the training loop."
)
CALL_INPUTS = "different for each call; attncli.Watch(model, inputs=x) uses the same inputs"
LIVE = "This screen is live. Ctrl-C leaves it; the training continues."
FOLLOWED = "Waiting for new checkpoints. Ctrl-C stops the command."


def watch_reports(path: Path, reader: Reader, head: str | None = None) -> list[Report]:
    """Return one report per text for the steps in a store.

    Raises UserError for a store without steps, and for a head that the model does not have.
    """
    from attncli.features.watch.training_steps import has_steps, stored_steps

    if not has_steps(reader):
        raise UserError(f"{path}: has no training steps: use attn results {path}")
    environment = next(iter(reader.environments()), {})
    if head is None:
        return [_report(path, steps, environment) for steps in stored_steps(reader)]
    _, layer, number = _parsed_head(head)
    every = stored_steps(reader, statistics=None)
    return [_head_report(path, steps, environment, layer, number) for steps in every]


def _parsed_head(head: str) -> NamedHead:
    try:
        return named_head(head)
    except ValueError as error:
        raise UserError(f"--head: {error}") from None


def _report(path: Path, steps: "StoredSteps", environment: Mapping[str, str]) -> Report:
    result = steps.all_heads()
    numbers = [name for name in result.steps.cells if not name.endswith(COUNT)]
    tensors = {name: NamedTensor(("point",), result.steps.numbers(name)) for name in numbers}
    tensors |= steps.tensors()
    # Some statistics may have no numbers: induction depends on knowing which tokens are equal.
    tensors = {name: tensor for name, tensor in tensors.items() if np.isfinite(tensor.values).any()}
    notes = [f"Patterns that no head shows at any step: {', '.join(result.never)}."] if result.never else []
    return _built(path, steps, environment, tensors, result, notes, counted(len(result.heads), "head"))


def _built(
    path: Path,
    steps: "StoredSteps",
    environment: Mapping[str, str],
    tensors: Mapping[str, NamedTensor],
    result: Result,
    notes: Sequence[str],
    what: str,
) -> Report:
    first, last = steps.steps[0], steps.steps[-1]
    keys = ("probe", "num_tokens", "sentence", "seed", "inputs")
    spec = {"store": str(path), "model": steps.name} | {key: steps.settings.get(key) for key in keys}
    span = f"step {last}" if first == last else f"{len(steps.steps):,} steps from {first} to {last}"
    if steps.are_calls:
        span, notes = f"calls {first} to {last}", [*notes, EACH_CALL]
        spec |= {"inputs": CALL_INPUTS}
    return Report(
        "watch",
        spec,
        environment,
        tensors=tensors,
        result=result,
        notes=tuple(notes),
        about=f"{steps.name}, {what}: {span}.",
    )


def _head_report(
    path: Path, steps: "StoredSteps", environment: Mapping[str, str], layer: int, head: int
) -> Report:
    """Return the report on one head: every statistic and its pattern over the steps."""
    result = steps.single_head(layer, head)
    names = ("step", *result.number_names())
    tensors = {name: NamedTensor(("point",), result.head.numbers(name)) for name in names}
    report = _built(path, steps, environment, tensors, result, (), f"head {layer}:{head}")
    return replace(report, spec={**report.spec, "head": f"{layer}:{head}"})


def unmet_conditions(reader: Reader, conditions: Sequence[Condition], reports: Sequence[Report]) -> list[str]:
    """Return a line per step at which a condition does not hold, and a line per condition on an unknown name.

    Names that are not numbers of a step, such as `pattern`, refer to columns of the reports' tables.
    """
    from attncli.features.watch.training_steps import STEP_COLUMNS, broken_expectations, steps_in

    if not conditions:
        return []
    first = next(steps_in(reader), None)
    stored = [column.statistic for column in (() if first is None else first.columns)]
    step_numbers = {*STEP_COLUMNS, "loss", *stored}
    tables = {
        each: rows
        for each in conditions
        if each.name not in step_numbers and (rows := _rows_with(each.name, reports))
    }
    expectations = Expectations([each for each in conditions if each not in tables])
    if texts := [
        each for each in expectations.conditions if each.number is None and each.name in step_numbers
    ]:
        raise UserError(*(f"--expect '{each}': must end in a number (got {each.text})" for each in texts))
    lines = [
        line
        for step in steps_in(reader)
        for line in broken_expectations(expectations, step.step, step.columns, step.values)
    ]
    lines += [line for each, rows in tables.items() for line in _broken_rows(each, rows)]
    names = [name for name in (*STEP_COLUMNS, *stored, *_columns(reports)) if "." not in name]
    return lines + expectations.unmet(
        list(dict.fromkeys(names)), "; use attn results STORE --tidy to list all of them"
    )


TABLES = ("head", "heads", "patterns", "changes")
TABLE_COLUMNS = (
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
"""The columns of TABLES that are not numbers of each step."""


def _columns(reports: Sequence[Report]) -> list[str]:
    """Return the columns of the reports' tables that are not numbers of each step."""
    tables = (report.table(name) for report in reports for name in TABLES)
    return [column for table in tables if table for column in table[0] if column in TABLE_COLUMNS]


def _rows_with(column: str, reports: Sequence[Report]) -> list[Row]:
    """Return the rows of the first table in each report that has this column."""
    by_report = ([report.table(name) for name in TABLES] for report in reports)
    first = (next((table for table in tables if table and column in table[0]), ()) for tables in by_report)
    return [row for table in first for row in table]


def _broken_rows(condition: Condition, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line if rows of a table do not meet a condition, and quote the first of these rows."""
    wrong = [row for row in rows if not condition.holds(row[condition.name])]
    if wrong:
        first, more = wrong[0], f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        got = first[condition.name]
        yield f"{_step(first)}expected {condition}: got {'none' if got is None else got}{_where(first)}{more}"


def _step(row: Row) -> str:
    return f"step {row.step}: " if isinstance(row, PatternChange | StepOfHead) else ""


def _where(row: Row) -> str:
    if isinstance(row, PatternOverSteps | PatternChange | HeadAtStep):
        return f" in {row.layer}:{row.head}"
    return ""


def show_watch(
    run: Sequence[str],
    head: str | None,
    expect: Sequence[str],
    follow: bool,
    fresh: bool,
    config: str | None,
    **values: Any,
) -> int:
    """Write the steps of a store, or survey the checkpoints of a training run."""
    settings = {parameter.name: values.pop(parameter.name) for parameter in SETTINGS if parameter.is_passed}
    ships = not run
    run = run or [resolved_file(SHIPPED_RUN)]
    if len(run) == 1 and is_store_of_steps(run[0]):
        refused = {"fresh": fresh or None, "config": config}
        refused |= {key: each.value for key, each in settings_from_flags(settings).items()}
        refuse_flags(refused, f"is only for checkpoints: {SHIPPED_RUN if ships else run[0]} is a store")
        to = Destination(**values, is_stored=True)
        return show_store(Path(run[0]), head, expect, to, follow=follow, ships=ships)
    for name in filter(is_store_of_steps, run):
        raise UserError(f"{name}: is a store, which must be the only argument: use attn watch {name}")
    store = Path(values[OUTPUT.name]) if is_store_name(values[OUTPUT.name] or "") else None
    to = Destination(**(values if store is None else {**values, OUTPUT.name: None}), experiment="watch")
    return watch_checkpoints(
        run, config, settings, to, store_path=store, head=head, expect=expect, follow=follow, fresh=fresh
    )


def is_store_of_steps(run: str) -> bool:
    """Return True if an argument is a store, which may not exist yet, and not a checkpoint."""
    is_checkpoint = (Path(run) / "config.json").is_file()
    return is_file(run) or (not is_checkpoint and is_store_name(run))


def show_store(
    path: Path,
    head: str | None,
    expect: Sequence[str],
    to: Destination,
    *,
    follow: bool = False,
    ships: bool = False,
) -> int:
    """Write the steps in a store; on a terminal, update the screen while a process writes to the store.

    With `follow`, wait for a missing store. `ships` marks reports on the store that ships with attn.
    """
    from attncli.features.watch.training_steps import has_steps

    conditions = parse_conditions(expect, "--expect", numbers_only=False)
    if not path.exists() and path.parent.is_dir():
        if not follow:
            raise UserError(f"{path}: no such file: use --follow to wait until a training run creates it")
        _wait_for(path)
    if _is_live(to) and path.exists() and is_driven(path):
        with drawing(to) as draw:
            while is_driven(path):
                with reading(path) as reader:
                    draw(watch_reports(path, reader, head) if has_steps(reader) else [], LIVE)
                time.sleep(SECONDS_BETWEEN)
    with progress_line() as line, reading(path) as reader:
        line.begin(f"reading {path.name}")
        reports = watch_reports(path, reader, head)
        if ships:
            reports = [replace(report, spec={**report.spec, "ships_with_attn": True}) for report in reports]
        unmet = unmet_conditions(reader, conditions, reports)
        line.clear()
        code = exit_code(unmet)
        _write(reports, to)
    return code


def _wait_for(path: Path) -> None:
    """Wait until a training run creates the store, or until Ctrl-C is pressed."""
    message = f"{path.name}: no such file yet: waiting for the training run (Ctrl-C to stop)"
    with progress_line() as line:
        if not line.is_terminal:
            note(message)
        line.begin(message)
        while not path.exists():
            time.sleep(SECONDS_BETWEEN)


def _write(reports: Sequence[Report], to: Destination) -> None:
    to.write(reports, several=len(reports) > 1)


def _is_live(to: Destination) -> bool:
    return to.format == "table" and to.path is None and not to.display.show and sys.stdout.isatty()


ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


@contextmanager
def drawing(to: Destination) -> Iterator[Callable[[Sequence[Report], str], None]]:
    """Show a separate screen within this context, until Ctrl-C; yield a function that redraws the screen."""
    write = load_view("table")
    on_screen = ""

    def draw(reports: Sequence[Report], line: str) -> None:
        nonlocal on_screen
        columns, lines = width(True), height(True)
        each = None if lines is None else max(1, (lines - 1) // max(1, len(reports)) - (len(reports) > 1))
        display = replace(to.display, width=columns, height=each, colors=color_depth(to.color, True))
        stream = StringIO()
        write(reports, stream, display)
        text = f"{stream.getvalue()}{line[: (columns or 80) - 1]}"
        if text != on_screen:
            on_screen = text
            rows = text.split("\n")[:lines]
            sys.stdout.write(HOME + f"{CLEAR_LINE}\n".join(rows) + CLEAR_LINE + CLEAR_BELOW)
            sys.stdout.flush()

    sys.stdout.write(ENTER)
    try:
        with suppress(KeyboardInterrupt):
            yield draw
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def watch_checkpoints(
    patterns: Sequence[str],
    config: str | None,
    flags: dict[str, Any],
    to: Destination,
    *,
    store_path: Path | None,
    head: str | None,
    expect: Sequence[str],
    follow: bool,
    fresh: bool,
) -> int:
    """Survey the checkpoints of a training run that are missing from the store, then write all steps."""
    from attncli.features.watch.checkpoints import CheckpointSurveys, find_checkpoints

    settings = _step_settings(config, flags)
    _check_store(store_path, fresh)
    if head is not None:
        _parsed_head(head)

    def model_spec(model: str) -> HeadsSpec:
        return checked_spec(HeadsSpec, {**settings, "model": Given(model, RUN.metavar or "")})

    allows = settings.get("allow_download")
    allow_download = allows is not None and allows.value is True
    find = partial(find_checkpoints, patterns, allow_download=allow_download)
    checkpoints = find()
    if not checkpoints and not follow:
        raise UserError(_no_checkpoints(patterns))
    conditions = parse_conditions(expect, "--expect", numbers_only=False)
    if checkpoints:
        _check_names(expect, conditions, model_spec(next(iter(checkpoints.values())).model))
    with ExitStack() as stack:
        path = store_path
        if path is None:  # a temporary store
            path = Path(stack.enter_context(TemporaryDirectory(prefix="attn-"))) / "checkpoints.db"
            create_file(path, rows=False, weights=False)
        line = stack.enter_context(progress_line())
        store = stack.enter_context(open_store(path, fresh=fresh, rows=False, weights=False))
        surveys = CheckpointSurveys(store, model_spec, on_begin=line.begin, on_error=line.tell)
        surveys.take(surveys.new(checkpoints) if follow else checkpoints)
        line.clear()
        without_store = (
            {} if store_path is not None else {"store": None, **({"follow": True} if follow else {})}
        )
        reports_in = partial(_reports_in, path, head, without_store)
        if follow:
            _follow(surveys, find, path, reports_in, to)
        with reading(path) as reader:
            if not reader.has_steps():
                return exit_code([], failed=len(surveys.failed))
            reports = reports_in(reader)
            unmet = unmet_conditions(reader, conditions, reports)
            code = exit_code(unmet, failed=len(surveys.failed))
            _write(reports, to)
    return code


def _step_settings(config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """Return the survey settings for each step. Raises UserError for settings that do not apply to steps."""
    settings = given_settings("heads", config, flags)
    if errors := [
        settings[key].line(key, "is not for checkpoints") for key in NOT_FOR_CHECKPOINTS if key in settings
    ]:
        raise UserError(*errors)
    # `allow_download` needs a model, which is set later for each checkpoint.
    text_settings = {key: value for key, value in settings.items() if key != "allow_download"}
    return settings | with_piped_text(HeadsSpec, text_settings)


def _check_store(path: Path | None, fresh: bool) -> None:
    if path is None:
        if fresh:
            raise UserError("--fresh: needs a store: -o FILE.db")
        return
    checked_store(path)


def _no_checkpoints(patterns: Sequence[str]) -> str:
    """Return the error for patterns that match no checkpoints, with advice on what would work."""
    folder = next((Path(name) for name in patterns if Path(name).is_dir()), None)
    if folder is not None and any(folder.glob("*/config.json")):
        inside = shlex.join([str(folder / "*")])
        return f"{folder}: is not a checkpoint, but contains checkpoints: use attn watch {inside}"
    where = f"{' or '.join(patterns)}: no checkpoints" + (" in it" if folder else " or store of this name")
    name = f"{folder or 'run'}/checkpoint-500"
    return f"{where}: a checkpoint is a model folder with a step number in its name, such as {name}"


def _check_names(expect: Sequence[str], conditions: Sequence[Condition], spec: HeadsSpec) -> None:
    """Raise UserError for a condition on a name that no step can have, before the first step is measured."""
    from attncli.features.watch.training_steps import parse_expectations

    pairs = zip(expect, conditions, strict=True)
    parse_expectations([text for text, each in pairs if each.name not in TABLE_COLUMNS], [spec], "--expect")


def _reports_in(
    path: Path, head: str | None, without_store: Mapping[str, object], reader: Reader
) -> list[Report]:
    """Return the reports, marked `without_store` if the store is temporary; empty before the first step."""
    reports = watch_reports(path, reader, head) if reader.has_steps() else []
    return [replace(report, spec={**report.spec, **without_store}) for report in reports]


def _follow(
    surveys: "CheckpointSurveys",
    find: "Callable[[], dict[int, Checkpoint]]",
    path: Path,
    reports_in: Callable[[Reader], list[Report]],
    to: Destination,
) -> None:
    """Wait for new checkpoints until Ctrl-C is pressed, and write all steps after each one."""
    is_live = _is_live(to)
    with drawing(to) if is_live else _until_interrupted() as draw:
        is_due = is_live
        while True:
            if is_due:
                with reading(path) as reader:
                    reports = reports_in(reader)
                if is_live:
                    draw(reports, FOLLOWED)
                elif to.path is not None:
                    _write(reports, to)
            time.sleep(SECONDS_BETWEEN_REVISIONS if surveys.are_on_hub else SECONDS_BETWEEN)
            is_due = bool(surveys.take(surveys.new(find())))


@contextmanager
def _until_interrupted() -> Iterator[Any]:
    with suppress(KeyboardInterrupt):
        yield None


command = partial(
    Command,
    run=show_watch,
    parameters=[
        *(RUN, HEAD, FOLLOW, EXPECT, *SETTINGS, replace(CONFIG, everyday=""), FRESH),
        *(FORMAT, KEEP, OPEN, TITLE, FIGURE_WIDTH, SHOW_STEPS, PRECISION, COLOR, SCALE_COLORS, DEBUG),
    ],
    examples=EXAMPLES,
    needs_torch=True,
)
