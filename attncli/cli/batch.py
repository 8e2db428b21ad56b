"""`attn batch`: the experiments of config files, shown as they come or kept in a store."""

import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.batch.plan import Item, Plan, make_plan
from attncli.batch.prompts import PromptFile
from attncli.batch.serial import run_jobs
from attncli.batch.store_file import SUFFIXES as STORE_SUFFIXES
from attncli.batch.store_file import is_store_name
from attncli.batch.threads import one_torch_thread
from attncli.batch.worth import estimated_work, num_together
from attncli.cli.output import Color, Debug, Destination, Format, Precision, ScaleColors, SkipSink
from attncli.errors import UserError
from attncli.spec.overrides import parse_overrides
from attncli.views import SUFFIXES, view_of_suffix
from attncli.views.plain_text import plain_text
from attncli.views.progress import progress_line

if TYPE_CHECKING:
    from attncli.batch.conditions import Condition
    from attncli.report import Report

BROKEN, FINISHED_WITH_FAILURES = 1, 3
MAX_WORKERS = 1024

EXAMPLES = """
  attn batch configs/lessons/causal.yaml
  attn batch configs/lessons/*.yaml --format jsonl -o lessons.jsonl
  attn batch configs/sweep.yaml --file prompts.txt --dry-run
  attn batch configs/sweep.yaml --file prompts.txt -o runs.db --workers 4
  attn batch configs/sweep.yaml --set num_heads=4 --expect "entropy.mean < 2\""""

Files = Annotated[
    list[str],
    typer.Argument(help="Config files, each with one experiment, steps or a sweep.", metavar="FILE..."),
]
Sentences = Annotated[
    str | None,
    typer.Option(
        "--file",
        help="Run each experiment on every sentence of a file: one a line, or JSON Lines (.jsonl) with "
        "sentence, context and id; - reads stdin.",
        metavar="FILE",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting that overrides the files; repeatable.", metavar="KEY=VALUE"),
]
Kept = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        help="Write reports to a file, whole or not at all; or keep every run in a store (.db, .sqlite): "
        "rerun the same command to resume.",
        metavar="FILE",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, and exit.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start the store over instead of resuming.")]
Rows = Annotated[bool, typer.Option("--rows", help="Keep the statistics of every row, too.")]
Weights = Annotated[bool, typer.Option("--weights", help="Keep the weights as safetensors beside the store.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes to compute in (default: one per core where the batch is worth their start).",
        metavar="INTEGER",
        min=1,
        max=MAX_WORKERS,
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", help="Compute on a Dask cluster: tcp://host:port.", metavar="ADDRESS"),
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")]
Expect = Annotated[
    list[str] | None,
    typer.Option(
        "--expect",
        help='What must hold of every run, or exit 1: "entropy.mean < 2"; repeatable.',
        metavar="CONDITION",
    ),
]


def run_files(
    files: Files,
    sentences: Sentences = None,
    set_: Set = None,
    dry_run: DryRun = False,
    output: Kept = None,
    fresh: Fresh = False,
    rows: Rows = False,
    weights: Weights = False,
    workers: Workers = None,
    scheduler: Scheduler = None,
    fail_fast: FailFast = False,
    expect: Expect = None,
    format: Format = None,
    precision: Precision = "4",
    color: Color = "auto",
    scale_colors: ScaleColors = "linear",
    skip_sink: SkipSink = None,
    debug: Debug = False,
) -> int:
    """Validate every file and sentence, then run; what fails is told and the rest goes on."""
    from attncli.batch.conditions import parse_conditions

    store = Path(output) if output is not None and is_store_name(output) else None
    of_store = {"--fresh": fresh, "--rows": rows, "--weights": weights}
    of_store |= {"--workers": workers is not None, "--scheduler": scheduler is not None}
    _refuse_flags(store, of_store, workers, scheduler, format)
    if store is not None:
        Destination.refuse_what_is_no_file(store)
    elif output and format is None and view_of_suffix(Path(output)) is None:
        known = f"{', '.join(STORE_SUFFIXES)} (a store), {', '.join(SUFFIXES)}"
        raise UserError(f"-o {output}: the suffix must be one of {known}, or give --format")
    conditions = parse_conditions(expect or [], "--expect", numbers_only=True)
    to = Destination(
        format,
        None if store else output,
        precision,
        color,
        several=True,
        scale_colors=scale_colors,
        skip_sink=skip_sink,
    )
    overrides = parse_overrides(set_ or [])
    with PromptFile(sentences) if sentences is not None else nullcontext() as prompts:
        plan = make_plan([Path(file) for file in files], overrides, prompts)
        if dry_run:
            from attncli.cli.batch_store import told_of

            for line in [*plan.lines(), *(told_of(plan, store) if store is not None else ())]:
                typer.echo(plain_text(line))
            return 0
        if store is None:
            return _show(plan, to, conditions, fail_fast=fail_fast, debug=debug)
        from attncli.cli.batch_store import keep

        return keep(
            plan,
            store,
            fresh=fresh,
            rows=rows,
            weights=weights,
            workers=workers,
            scheduler=scheduler,
            conditions=conditions,
            fail_fast=fail_fast,
        )


def _refuse_flags(
    store: Path | None,
    of_store: dict[str, bool],
    workers: int | None,
    scheduler: str | None,
    view: str | None,
) -> None:
    errors = [f"{flag}: needs a store: -o FILE.db" for flag, given in of_store.items() if given and not store]
    if workers is not None and scheduler is not None:
        errors.append("--workers: cannot be combined with --scheduler, which has its own")
    if store is not None and view is not None:
        errors.append(f"--format: needs no store: attn export {store} -o FILE reads one")
    if errors:
        raise UserError(*errors)


def tell(name: str, lines: list[str]) -> None:
    """What is wrong with a run, on standard error."""
    for line in lines:
        typer.echo(plain_text(f"{name}: {line}"), err=True)


def _show(
    plan: Plan, to: Destination, conditions: "tuple[Condition, ...]", *, fail_fast: bool, debug: bool
) -> int:
    """Every report to the destination as it comes."""
    from attncli.batch.expectations import Expectations

    expectations = Expectations(conditions)
    failed = broken = 0

    def fail(item: Item, error: UserError) -> None:
        nonlocal failed
        failed += 1
        if debug:
            traceback.print_exception(error)
        tell(str(item.source), list(error.lines))

    def checked(results: "Iterator[tuple[Item, Report]]") -> "Iterator[Report]":
        nonlocal broken
        for item, report in results:
            yield report
            if conditions:
                from attncli.batch.figures import figures_of

                lines = expectations.broken(*figures_of(report))
                broken += bool(lines)
                tell(str(item.source), lines)

    with progress_line() as progress, one_torch_thread() if len(plan) > 1 else nullcontext():
        results = run_jobs(
            plan.jobs(),
            fail,
            progress,
            stopped=lambda: fail_fast and bool(failed or broken),
            num_together=num_together(estimated_work(plan, len(plan))),
        )
        to.write(checked(results))
    if failed:
        typer.echo(f"{failed} of {len(plan)} experiments failed", err=True)
    return exit_code(expectations.unmet(), broken=broken, failed=failed)


def exit_code(unmet: list[str], *, broken: int, failed: int) -> int:
    """1 where something expected does not hold, else 3 where a run failed, else 0."""
    for line in unmet:
        typer.echo(plain_text(line), err=True)
    if broken:
        runs = "1 run does" if broken == 1 else f"{broken:,} runs do"
        typer.echo(f"{runs} not meet what is expected", err=True)
    return BROKEN if broken or unmet else FINISHED_WITH_FAILURES if failed else 0


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(run_files)
    return typer.main.get_command(app)
