"""`attn batch`: the experiments of config files, shown as they come or kept in a store."""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attncli.commands.command import (
    COLOR_FLAGS,
    DEBUG_HELP,
    FORMAT,
    FRESH,
    OPEN,
    PRECISION,
    SCHEDULER,
    SHOW,
    WORKERS,
    Command,
    argument,
    flag,
    option,
    store_errors,
)
from attncli.commands.output import (
    STDOUT,
    Destination,
    ProgressLine,
    checked_store,
    counted_runs,
    first_words,
    progress_line,
    readable_rate,
    readable_seconds,
)
from attncli.core.runtime import one_torch_thread
from attncli.errors import (
    DONE,
    FAILED,
    MOST_LINES,
    SOME_FAILED,
    ClosedPipe,
    UserError,
    available_bytes,
    first_lines,
    forget_stdout,
)
from attncli.files import STORE_SUFFIXES
from attncli.plain_text import counted, plain_text
from attncli.runs.connection import opened_to_read
from attncli.runs.driver import (
    SECONDS_A_CHUNK,
    SECONDS_A_CHUNK_TOGETHER,
    Driver,
    Executor,
    MergeExecutor,
    run_here,
    run_in_workers,
)
from attncli.runs.plan import (
    Item,
    Plan,
    PromptFile,
    RunKeys,
    estimated_work,
    make_plan,
    num_together,
    num_workers,
)
from attncli.runs.report_values import (
    Condition,
    Expectations,
    parse_conditions,
    refuse_unknown,
    values_of,
)
from attncli.runs.runner import run_jobs
from attncli.runs.store import (
    WeightFiles,
    count_planned,
    note_planned,
    open_store,
    refuse_without_safetensors,
)
from attncli.runs.store_files import check_header, is_file_name, is_new_folder, is_store_name
from attncli.settings.fields import in_words_of
from attncli.settings.overrides import parse_overrides
from attncli.systems import usable_cores
from attncli.views import SUFFIXES

if TYPE_CHECKING:
    from attncli.report import Report


EXAMPLES = (
    "attn batch lessons/sweep.yaml --dry-run",
    "attn batch lessons/sweep.yaml -o runs.db --workers 4",
    "attn batch my.yaml --file prompts.txt -o runs.db",
    "attn batch lessons/glove.yaml lessons/simple.yaml -o lessons.jsonl",
    'attn batch lessons/sweep.yaml --set embed_dim=32 --expect "entropy.mean < 2"',
)
ROWS = flag("--rows", "Keep the statistics of every row, too.")
# Flags that need a store.
STORE_FLAGS = (
    FRESH,
    ROWS,
    flag("--weights", "Keep the weights as safetensors beside the store."),
    WORKERS,
    SCHEDULER,
)
PARAMETERS = (
    argument(
        "files",
        "Config files, each with one experiment, steps or a sweep, as {experiment: heads, sweep: {sentence: "
        "[a b, c d]}}. `attn lesson --copy lessons` writes some; `attn heads --show-config > my.yaml` writes "
        "the settings of a command.",
        "FILE",
        kind=list[str],
        reads_file=True,
    ),
    option(
        "sentences --file",
        "Run each experiment on every sentence of a file: one per line, or JSON Lines (.jsonl) with "
        "sentence (or text), context, answer and id; - reads stdin.",
        "FILE",
        reads_file=True,
        everyday="run each on every sentence of a file",
    ),
    option(
        "--set",
        "A setting that overrides the files; repeatable.",
        "KEY=VALUE",
        kind=list[str],
        everyday="a setting that overrides the files",
    ),
    flag(
        "--dry-run",
        "Check everything, print the plan, and exit.",
        everyday="check everything and print the plan",
    ),
    option(
        "--output -o",
        "Write reports to a file, whole or not at all; or keep every run in a store (.db, .sqlite), or in a "
        "folder of Parquet files (runs/): rerun the same command to resume.",
        "FILE",
        everyday="write reports, or keep every run in a store (.db)",
    ),
    *STORE_FLAGS,
    flag("--fail-fast", "Stop at the first run that fails."),
    option(
        "--expect",
        'A condition that every run must meet, or exit 1: "entropy.mean < 2"; repeatable.',
        "CONDITION",
        kind=list[str],
        everyday='what every run must meet: "entropy.mean < 2"',
    ),
    *(FORMAT, OPEN, SHOW, PRECISION, *COLOR_FLAGS),
    flag("--debug", DEBUG_HELP),
)


def run_files(
    files: Sequence[str],
    sentences: str | None,
    set: Sequence[str],
    dry_run: bool,
    output: str | None,
    fail_fast: bool,
    expect: Sequence[str],
    debug: bool,
    *,
    format: str | None,
    fresh: bool,
    rows: bool,
    weights: bool,
    workers: int | None,
    scheduler: str | None,
    **flags: Any,
) -> int:
    """Validate every file and sentence, then run; failures are reported and the others still run."""
    of_store: dict[str, Any] = {
        "fresh": fresh,
        "rows": rows,
        "weights": weights,
        "workers": workers,
        "scheduler": scheduler,
    }
    store = Path(output) if output is not None and is_store_name(output) else None
    _refuse_flags(store, of_store, format)
    if store is not None:
        checked_store(store)
    elif output and not (output in STDOUT or format or Path(output).suffix.lower() in SUFFIXES):
        known = f"{', '.join(STORE_SUFFIXES)} (a store), / (one in a folder), {', '.join(SUFFIXES)}"
        raise UserError(f"-o {output}: the suffix must be one of {known}, or give --format")
    conditions = parse_conditions(expect, "--expect", numbers_only=True)
    to = Destination(output=None if store else output, format=format, several=True, **flags)
    overrides = parse_overrides(set)
    with PromptFile(sentences) if sentences is not None else nullcontext() as prompts:
        plan = make_plan([Path(file) for file in files], overrides, prompts)
        if conditions:
            refuse_unknown(conditions, plan.specs(), rows=rows)
        if dry_run:
            for line in [*plan.lines(), *(lines_about(plan, store) if store is not None else ())]:
                print(plain_text(line))
            return 0
        if store is None:
            return _show(plan, to, conditions, fail_fast=fail_fast, debug=debug)
        code = keep(plan, store, conditions=conditions, fail_fast=fail_fast, **of_store)
    if code == DONE and sys.stderr.isatty():
        print(plain_text(f"Next: attn results {store}"), file=sys.stderr)
    return code


def _refuse_flags(store: Path | None, of_store: dict[str, Any], view: str | None) -> None:
    errors = [*store_errors(store, of_store)]
    if store is not None and view is not None:
        errors.append(f"--format: needs no store: attn results {store} --tidy -o FILE reads one")
    if errors:
        raise UserError(*errors)


class RunErrors:
    """Errors of runs on standard error, as they come: of many lines the first, and then how many more."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        """Called before anything is printed."""
        self._num_lines = 0
        self._last = ""
        """One more line, held back: where others follow their count takes its place."""

    def __enter__(self) -> "RunErrors":
        return self

    def __exit__(self, *_: object) -> None:
        more = self._num_lines - MOST_LINES
        if more > 0:
            self._before()
            print(self._last if more == 1 else f"and {more:,} more", file=sys.stderr)

    @property
    def are_many(self) -> bool:
        """Whether no further error is printed."""
        return self._num_lines >= MOST_LINES

    def add(self, name: str, lines: Sequence[str]) -> None:
        """Print the lines on a run."""
        for line in first_lines(lines):
            self._num_lines += 1
            if self._num_lines > MOST_LINES + 1:
                continue
            message = plain_text(f"{name}: {in_words_of(line, flags=False)}")
            if self._num_lines > MOST_LINES:
                self._last = message
            else:
                self._before()
                print(message, file=sys.stderr)


def _show(
    plan: Plan, to: Destination, conditions: tuple[Condition, ...], *, fail_fast: bool, debug: bool
) -> int:
    """Write each report to the destination when it is ready."""
    expectations = Expectations(conditions)
    failed = broken = 0

    def fail(item: Item, error: UserError) -> None:
        nonlocal failed
        failed += 1
        if debug and not errors.are_many:
            traceback.print_exception(error)
        errors.add(str(item.source), error.lines)

    def checked(results: "Iterator[tuple[Item, Report]]") -> "Iterator[Report]":
        nonlocal broken
        for item, report in results:
            progress.clear()
            yield replace(report, id=item.id)
            if conditions:
                lines = expectations.broken(*values_of(report))
                broken += bool(lines)
                errors.add(str(item.source), lines)

    with (
        progress_line() as progress,
        RunErrors(progress.clear) as errors,
        one_torch_thread() if len(plan) > 1 else nullcontext(),
    ):
        progress.begin(first_words(spec.model_source() for spec in plan.specs()))
        results = run_jobs(
            plan.jobs(),
            fail,
            progress,
            stopped=lambda: fail_fast and bool(failed or broken),
            num_together=num_together(estimated_work(plan, len(plan))),
        )
        reports = checked(results)
        try:
            to.write(reports)
        except ClosedPipe:
            if not conditions:
                raise
            forget_stdout()
            for _ in reports:  # an expectation of every run also covers the runs that nobody reads
                pass
    if failed:
        print(f"{failed} of {len(plan)} experiments failed", file=sys.stderr)
    return exit_code(expectations.unmet(), broken=broken, failed=failed)


def exit_code(unmet: list[str], *, broken: int, failed: int) -> int:
    """1 where something expected does not hold, else 3 where a run failed, else 0."""
    for line in unmet:
        print(plain_text(line), file=sys.stderr)
    if broken:
        runs = "1 run does" if broken == 1 else f"{broken:,} runs do"
        print(f"{runs} not meet what is expected", file=sys.stderr)
    return FAILED if broken or unmet else SOME_FAILED if failed else DONE


command = partial(Command, run=run_files, parameters=PARAMETERS, examples=EXAMPLES)


def chosen_executor(workers: int, scheduler: str | None) -> Executor:
    """The executor: a cluster, several processes, or this one."""
    if scheduler is not None:
        from attncli.runs.cluster import run_in_cluster

        return partial(
            run_in_cluster,
            scheduler=scheduler,
            on_wait=lambda line: print(plain_text(line), file=sys.stderr),
        )
    return partial(run_in_workers, workers=workers) if workers else run_here


def keep(
    plan: Plan,
    path: Path,
    *,
    fresh: bool,
    rows: bool,
    weights: bool,
    workers: int | None,
    scheduler: str | None,
    conditions: tuple[Condition, ...],
    fail_fast: bool,
) -> int:
    """Run and store the remaining runs, print a summary and return the exit code."""
    if weights:
        refuse_without_safetensors()
    if scheduler is not None:  # before --fresh removes anything
        from attncli.runs.cluster import check_scheduler

        check_scheduler(scheduler)
    models = [spec.model_source() for spec in plan.specs()]
    with ExitStack() as stack:
        line = stack.enter_context(progress_line())
        line.begin(first_words(models))
        keys = _keys(plan, line)
        keeping = {"rows": rows, "weights": weights, "in_folder": not is_file_name(path)}
        store = stack.enter_context(open_store(path, fresh=fresh, **keeping))
        num_runs, num_done = store.take_plan(plan, keys)
        work = estimated_work(plan, num_runs - num_done)
        if workers is None and scheduler is None:
            workers = num_workers(work, cores=usable_cores(), free_bytes=available_bytes())
        workers = min(workers or 0, plan.num_jobs)
        if workers:
            each = "" if models == [None] * len(models) else f", each {first_words(models)}"
            line.begin(f"starting {counted(workers, 'worker')}{each}")
        errors = RunErrors(line.clear)
        driver = Driver(
            plan,
            keys,
            store,
            num_runs=num_runs,
            kept=num_done,
            expectations=Expectations(conditions),
            num_workers=max(workers, 1),
            seconds_a_job=work.seconds_a_job,
            seconds_a_chunk=SECONDS_A_CHUNK_TOGETHER if work.runs_once else SECONDS_A_CHUNK,
            fail_fast=fail_fast,
            on_errors=errors.add,
            on_progress=lambda *progress: line.show(lambda: counted_runs(line, *progress)),
        )
        # One thread for the many small runs of experiments without a model; those with one see to theirs.
        threads = nullcontext() if None not in models or num_runs == 1 else one_torch_thread()
        with threads:
            _drive(driver, chosen_executor(workers, scheduler), line, errors)
        if weights and driver.done and not WeightFiles(path).folder.is_dir():
            print("--weights: none was kept: these experiments have no matrix of weights", file=sys.stderr)
        return exit_code(driver.expectations.unmet(), broken=driver.broken, failed=driver.failed)


def _drive(driver: Driver, executor: Executor, line: ProgressLine, errors: RunErrors) -> None:
    """Run the remaining runs; at the end, or when a signal ends it, print what the store has."""
    store = driver.store
    try:
        with errors:
            driver.run(executor)
            driver.merge(cast(MergeExecutor, executor))
    except (KeyboardInterrupt, SystemExit):  # of Ctrl-C or SIGTERM
        line.clear()
        interrupted = f"interrupted: {_kept(store.path, driver)}; rerun the same command to resume"
        print(plain_text(interrupted), file=sys.stderr)
        raise
    line.clear()
    print(plain_text(_summary(store.path, driver, line, store.count_earlier())), file=sys.stderr)


def _keys(plan: Plan, line: ProgressLine) -> RunKeys:
    return RunKeys(plan, lambda path: line.show(lambda: f"reading {path.name}, to know it again"))


def _kept(path: Path, driver: Driver) -> str:
    return f"{path} has {driver.kept + driver.done:,} of {driver.num_runs:,} runs"


def _summary(path: Path, driver: Driver, line: ProgressLine, num_earlier: int) -> str:
    now = driver.done + driver.failed
    parts = [_kept(path, driver)]
    if now:
        rate = readable_rate(now / line.seconds)
        parts.append(f"{driver.done:,} done now in {readable_seconds(line.seconds)} ({rate})")
    else:
        parts.append("nothing was left to do")
    if driver.kept and now:
        parts.append(f"{driver.kept:,} were there")
    parts.extend(_repeats(driver.plan, driver.num_runs))
    if num_earlier:
        parts.append(f"{num_earlier:,} of earlier plans left out (attn results --all has them)")
    if driver.failed:
        parts.append(f"{driver.failed:,} failed")
    if driver.stopped:
        parts.append("stopped by --fail-fast")
    return ", ".join(parts)


def _repeats(plan: Plan, num_runs: int) -> list[str]:
    """How many runs of a plan are equal to one before, so that the store has them once."""
    return [f"{len(plan) - num_runs:,} repeat another"] if len(plan) > num_runs else []


def lines_about(plan: Plan, path: Path) -> Iterator[str]:
    """How many of a plan's runs a store has already; the store is not changed."""
    if not path.exists() or (path.is_dir() and is_new_folder(path)):
        yield f"{path} is not there yet"
        return
    check_header(path)
    with opened_to_read(path) as connection:
        connection.execute("PRAGMA query_only = OFF")  # the plan goes into a temporary table
        with progress_line() as line:
            note_planned(connection, plan, _keys(plan, line))
        num_runs, num_done = count_planned(connection)
    counts = [f"{path} has {num_done:,} of them", f"{num_runs - num_done:,} are left"]
    yield ", ".join([*counts, *_repeats(plan, num_runs)])
