"""`attn batch`: run the experiments in config files, and show them at once or keep them in a store."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from attncli.commands.expectations import exit_code, write_checked
from attncli.commands.keeping import RunErrors, keep, store_status_lines
from attncli.commands.output import STDOUT, Destination, checked_store, first_words, progress_line
from attncli.core.runtime import one_torch_thread
from attncli.errors import DONE, UserError
from attncli.runs.jobs import Item
from attncli.runs.plan import Plan, PromptFile, make_plan
from attncli.runs.report_values import Condition, Expectations, parse_conditions, refuse_unknown, values_of
from attncli.runs.runner import run_jobs
from attncli.runs.work import estimated_work, num_together
from attncli.settings import is_offered
from attncli.settings.overrides import parse_overrides
from attncli.system.files import STORE_SUFFIXES, is_store_name
from attncli.system.plain_text import plain_text
from attncli.views import SUFFIXES

if TYPE_CHECKING:
    from attncli.records.report import Report


EXAMPLES = (
    "attn batch lessons/sweep.yaml --dry-run",
    "attn batch lessons/sweep.yaml -o runs.db --workers 4",
    "attn batch my.yaml --file prompts.txt -o runs.db",
    "attn batch lessons/glove.yaml lessons/simple.yaml -o lessons.jsonl",
    'attn batch lessons/sweep.yaml --set embed_dim=32 --expect "entropy.mean < 2"',
)


ROWS = flag("--rows", "Also store the statistics of every row.")


# flags that need a store
STORE_FLAGS = (
    FRESH,
    ROWS,
    flag("--weights", "Also save the weights as safetensors files beside the store."),
    WORKERS,
    SCHEDULER,
)


PARAMETERS = (
    argument(
        "files",
        "Config files, each with one experiment, several steps or a sweep, such as {experiment: heads, "
        "sweep: {sentence: [a b, c d]}}. `attn lesson --copy lessons` writes some examples; "
        "`attn heads --show-config > my.yaml` writes the settings of a command.",
        "FILE",
        kind=list[str],
        reads_file=True,
    ),
    option(
        "sentences --file",
        "Run each experiment on every sentence in a file: one per line, or JSON Lines (.jsonl) with "
        "sentence (or text), context, answer and id; - reads stdin.",
        "FILE",
        reads_file=True,
        everyday="run each experiment on every sentence in a file",
    ),
    option(
        "--set",
        "Override a setting in the files; repeatable.",
        "KEY=VALUE",
        kind=list[str],
        everyday="override a setting in the files",
    ),
    flag(
        "--dry-run",
        "Check everything, print the plan, and exit.",
        everyday="check everything and print the plan",
    ),
    option(
        "--output -o",
        "Write the reports to a file, which is replaced only on success; or store every run (.db, .sqlite), "
        "so that rerunning the same command resumes.",
        "FILE",
        everyday="write reports, or store every run (.db)",
    ),
    *STORE_FLAGS,
    flag("--fail-fast", "Stop at the first run that fails."),
    option(
        "--expect",
        'Exit with code 1 unless every run meets this condition: "entropy.mean < 2"; repeatable.',
        "CONDITION",
        kind=list[str],
        everyday='require every run to meet: "entropy.mean < 2"',
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
    """Validate every file and sentence, then run. A failed run is reported, and the others continue."""
    store_flags: dict[str, Any] = {
        "fresh": fresh,
        "rows": rows,
        "weights": weights,
        "workers": workers,
        "scheduler": scheduler,
    }
    store = Path(output) if output is not None and is_store_name(output) else None
    _refuse_flags(store, store_flags, format)
    if store is not None:
        checked_store(store)
    elif output and not (output in STDOUT or format or Path(output).suffix.lower() in SUFFIXES):
        known = f"{', '.join(STORE_SUFFIXES)} (a store), {', '.join(SUFFIXES)}"
        raise UserError(f"-o {output}: the suffix must be one of {known} unless --format is given")
    conditions = parse_conditions(expect, "--expect", numbers_only=True)
    to = Destination(output=None if store else output, format=format, several=True, **flags)
    overrides = parse_overrides(set)
    with PromptFile(sentences) if sentences is not None else nullcontext() as prompts:
        plan = make_plan([Path(file) for file in files], overrides, prompts)
        if conditions:
            refuse_unknown(conditions, plan.specs(), rows=rows)
        if dry_run:
            for line in [*plan.lines(), *(store_status_lines(plan, store) if store is not None else ())]:
                print(plain_text(line))
            return 0
        if store is None:
            return _show(plan, to, conditions, fail_fast=fail_fast, debug=debug)
        code = keep(plan, store, conditions=conditions, fail_fast=fail_fast, **store_flags)
    if code == DONE and sys.stderr.isatty() and is_offered(line := f"attn results {store}"):
        print(plain_text(f"Next: {line}"), file=sys.stderr)
    return code


def _refuse_flags(store: Path | None, store_flags: dict[str, Any], view: str | None) -> None:
    errors = [*store_errors(store, store_flags)]
    if store is not None and view is not None:
        advice = f"use attn results {store} --tidy -o FILE to export the store"
        errors.append(f"--format: does not apply to a store: {advice}")
    if errors:
        raise UserError(*errors)


def _show(
    plan: Plan, to: Destination, conditions: tuple[Condition, ...], *, fail_fast: bool, debug: bool
) -> int:
    """Write each report to the destination as soon as it is ready."""
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
        write_checked(to, checked(results), has_conditions=bool(conditions))
    if failed:
        print(f"{failed} of {len(plan)} experiments failed", file=sys.stderr)
    return exit_code(expectations.unmet(), broken=broken, failed=failed)


command = partial(Command, run=run_files, parameters=PARAMETERS, examples=EXAMPLES, needs_torch=True)
