"""Runs whose results go into a store, with their workers, progress, errors and summary."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path

from attncli.commands.expectations import exit_code
from attncli.commands.output import (
    ProgressLine,
    counted_runs,
    first_words,
    progress_line,
    readable_rate,
    readable_seconds,
)
from attncli.core.runtime import one_torch_thread
from attncli.errors import MOST_LINES, available_bytes, first_lines
from attncli.runs.connection import opened_to_read
from attncli.runs.driver import (
    SECONDS_A_CHUNK,
    SECONDS_A_CHUNK_TOGETHER,
    Driver,
    Executor,
    run_here,
    run_in_workers,
)
from attncli.runs.keys import RunKeys
from attncli.runs.plan import Plan
from attncli.runs.report_values import Condition, Expectations
from attncli.runs.store import (
    WeightFiles,
    count_planned,
    note_planned,
    open_store,
    refuse_without_safetensors,
)
from attncli.runs.store_files import check_header
from attncli.runs.work import estimated_work, num_workers
from attncli.settings.fields import with_key_names
from attncli.system.plain_text import counted, plain_text
from attncli.system.platforms import usable_cores


class RunErrors:
    """Prints errors of runs to standard error as they come: the first lines, then a count of the rest."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        """Called before anything is printed."""
        self._num_lines = 0
        self._last = ""
        """The first line over the limit, held back: if more follow, their count replaces it."""

    def __enter__(self) -> "RunErrors":
        return self

    def __exit__(self, *_: object) -> None:
        more = self._num_lines - MOST_LINES
        if more > 0:
            self._before()
            print(self._last if more == 1 else f"and {more:,} more", file=sys.stderr)

    @property
    def are_many(self) -> bool:
        """True if no further errors will be printed."""
        return self._num_lines >= MOST_LINES

    def add(self, name: str, lines: Sequence[str]) -> None:
        """Print the error lines of a run."""
        for line in first_lines(lines):
            self._num_lines += 1
            if self._num_lines > MOST_LINES + 1:
                continue
            message = plain_text(f"{name}: {with_key_names(line, flags=False)}")
            if self._num_lines > MOST_LINES:
                self._last = message
            else:
                self._before()
                print(message, file=sys.stderr)


def chosen_executor(workers: int, scheduler: str | None) -> Executor:
    """Return the executor: a cluster, several processes, or only this process."""
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
    """Run and store the remaining runs, print a summary, and return the exit code."""
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
        store = stack.enter_context(open_store(path, fresh=fresh, rows=rows, weights=weights))
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
            num_done_before=num_done,
            expectations=Expectations(conditions),
            num_workers=max(workers, 1),
            seconds_a_job=work.seconds_a_job,
            seconds_a_chunk=SECONDS_A_CHUNK_TOGETHER if work.runs_once else SECONDS_A_CHUNK,
            fail_fast=fail_fast,
            on_errors=errors.add,
            on_progress=lambda *progress: line.show(lambda: counted_runs(line, *progress)),
        )
        # Many small runs without a model are fastest on one thread; models choose their own number.
        threads = nullcontext() if None not in models or num_runs == 1 else one_torch_thread()
        with threads:
            _drive(driver, chosen_executor(workers, scheduler), line, errors)
        if weights and driver.done and not WeightFiles(path).folder.is_dir():
            print("--weights: nothing was stored: these experiments have no weight matrix", file=sys.stderr)
        return exit_code(driver.expectations.unmet(), broken=driver.broken, failed=driver.failed)


def _drive(driver: Driver, executor: Executor, line: ProgressLine, errors: RunErrors) -> None:
    """Run the remaining runs. At the end, or when interrupted by a signal, print what the store holds."""
    store = driver.store
    try:
        with errors:
            driver.run(executor)
    except (KeyboardInterrupt, SystemExit):  # from Ctrl-C or SIGTERM
        line.clear()
        interrupted = f"interrupted: {_progress_text(store.path, driver)}; rerun the same command to resume"
        print(plain_text(interrupted), file=sys.stderr)
        raise
    line.clear()
    print(plain_text(_summary(store.path, driver, line, store.count_earlier())), file=sys.stderr)


def _keys(plan: Plan, line: ProgressLine) -> RunKeys:
    return RunKeys(plan, lambda path: line.show(lambda: f"hashing {path.name}"))


def _progress_text(path: Path, driver: Driver) -> str:
    return f"{path} has {driver.num_done_before + driver.done:,} of {driver.num_runs:,} runs"


def _summary(path: Path, driver: Driver, line: ProgressLine, num_earlier: int) -> str:
    now = driver.done + driver.failed
    parts = [_progress_text(path, driver)]
    if now:
        rate = readable_rate(now / line.seconds)
        parts.append(f"{driver.done:,} done now in {readable_seconds(line.seconds)} ({rate})")
    else:
        parts.append("nothing was left to do")
    if driver.num_done_before and now:
        parts.append(f"{driver.num_done_before:,} were already stored")
    parts.extend(_repeats(driver.plan, driver.num_runs))
    if num_earlier:
        parts.append(f"{num_earlier:,} of earlier plans left out (use attn results --all to include them)")
    if driver.failed:
        parts.append(f"{driver.failed:,} failed")
    if driver.stopped:
        parts.append("stopped by --fail-fast")
    return ", ".join(parts)


def _repeats(plan: Plan, num_runs: int) -> list[str]:
    """Return the number of runs that duplicate another run, as a message; the store holds them only once."""
    return [counted(len(plan) - num_runs, "duplicate")] if len(plan) > num_runs else []


def store_status_lines(plan: Plan, path: Path) -> Iterator[str]:
    """Yield how many of the plan's runs a store already holds, without changing the store."""
    if not path.exists():
        yield f"{path} does not exist yet"
        return
    check_header(path)
    with opened_to_read(path) as connection:
        connection.execute("PRAGMA query_only = OFF")  # the plan goes into a temporary table
        with progress_line() as line:
            note_planned(connection, plan, _keys(plan, line))
        num_runs, num_done = count_planned(connection)
    counts = [f"{path} has {num_done:,} of these runs", f"{num_runs - num_done:,} left to do"]
    yield ", ".join([*counts, *_repeats(plan, num_runs)])
