"""`attn batch -o runs.db`: a batch into a store, with its progress and its summary on standard error."""

from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncli.batch.conditions import Expectations
from attncli.batch.driver import Driver, Executor
from attncli.batch.executors import load_executor
from attncli.batch.keys import RunKeys
from attncli.batch.plan import Plan
from attncli.batch.store.store import count_planned, note_planned, open_store
from attncli.batch.store.store_file import check_header, connect_to_read
from attncli.batch.store.weight_files import WeightFiles, refuse_without_safetensors
from attncli.batch.worth import estimated_work, num_workers, usable_cores
from attncli.cli.batches.batch import exit_code, print_errors
from attncli.cli.progress import ProgressLine, counted, progress_line, readable_rate, readable_seconds
from attncli.memory import available_bytes
from attncli.plain_text import plain_text
from attncli.running.threads import one_torch_thread

if TYPE_CHECKING:
    from attncli.batch.conditions import Condition


def chosen_executor(workers: int, scheduler: str | None) -> Executor:
    """The executor: a cluster, several processes, or this one."""
    if scheduler is not None:
        return partial(
            load_executor("cluster").run_chunks,
            scheduler=scheduler,
            on_wait=lambda line: typer.echo(plain_text(line), err=True),
        )
    if workers:
        return partial(load_executor("workers").run_chunks, workers=workers)
    run: Executor = load_executor("serial").run_chunks
    return run


def keep(
    plan: Plan,
    path: Path,
    *,
    fresh: bool,
    rows: bool,
    weights: bool,
    workers: int | None,
    scheduler: str | None,
    conditions: "tuple[Condition, ...]",
    fail_fast: bool,
) -> int:
    """Run and keep what is not done yet; print a summary and return the exit code."""
    if weights:
        refuse_without_safetensors()
    expectations = Expectations(conditions)
    keys = _keys(plan)
    with progress_line() as line, open_store(path, fresh=fresh, rows=rows, weights=weights) as store:

        def print_above(name: str, lines: list[str]) -> None:
            line.clear()
            print_errors(name, lines)

        num_runs, num_done = store.take_plan(plan, keys)
        work = estimated_work(plan, num_runs - num_done)
        if workers is None and scheduler is None:
            workers = num_workers(work, cores=usable_cores(), free_bytes=available_bytes())
        workers = min(workers or 0, plan.num_jobs)
        driver = Driver(
            plan,
            keys,
            store,
            num_runs=num_runs,
            kept=num_done,
            expectations=expectations,
            num_workers=max(workers, 1),
            seconds_a_job=work.seconds_a_job,
            fail_fast=fail_fast,
            on_errors=print_above,
            on_progress=lambda *progress: line.show(lambda: counted(line, *progress)),
        )
        try:
            with one_torch_thread() if len(plan) > 1 else nullcontext():
                driver.run(chosen_executor(workers, scheduler))
        except KeyboardInterrupt:
            line.clear()
            typer.echo(
                plain_text(f"interrupted: {_kept(path, driver)}; rerun the same command to resume"), err=True
            )
            raise
        line.clear()
        typer.echo(plain_text(_summary(path, driver, line)), err=True)
        if weights and driver.done and not WeightFiles(path).folder.is_dir():
            typer.echo("--weights: none was kept: these experiments have no matrix of weights", err=True)
        return exit_code(expectations.unmet(), broken=driver.broken, failed=driver.failed)


def _keys(plan: Plan) -> RunKeys:
    with progress_line() as line:
        return RunKeys(plan, lambda path: line.show(lambda: f"reading {path.name}, to know it again"))


def _kept(path: Path, driver: Driver) -> str:
    return f"{path} has {driver.kept + driver.done:,} of {driver.num_runs:,} runs"


def _summary(path: Path, driver: Driver, line: ProgressLine) -> str:
    now = driver.done + driver.failed
    parts = [_kept(path, driver)]
    if now:
        rate = readable_rate(now / line.seconds)
        parts.append(f"{driver.done:,} done now in {readable_seconds(line.seconds)} ({rate})")
    else:
        parts.append("nothing was left to do")
    if driver.kept and now:
        parts.append(f"{driver.kept:,} were there")
    if driver.failed:
        parts.append(f"{driver.failed:,} failed")
    if driver.stopped:
        parts.append("stopped by --fail-fast")
    return ", ".join(parts)


def lines_about(plan: Plan, path: Path) -> Iterator[str]:
    """How many of a plan's runs a store has already; the store is not changed."""
    if not path.exists():
        yield f"{path} is not there yet"
        return
    check_header(path)
    with closing(connect_to_read(path)) as connection:
        connection.execute("PRAGMA query_only = OFF")  # the plan goes into a temporary table
        note_planned(connection, plan, _keys(plan))
        num_runs, num_done = count_planned(connection)
    repeated = f", {len(plan) - num_runs:,} repeat another" if len(plan) > num_runs else ""
    yield f"{path} has {num_done:,} of them, {num_runs - num_done:,} are left{repeated}"
