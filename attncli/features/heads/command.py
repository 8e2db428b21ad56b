"""The command `attn heads`: survey one text or many, or read a stored survey."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.commands import experiment
from attncli.commands.command import FRESH, SCHEDULER, WORKERS, given_settings, store_errors
from attncli.commands.expectations import Expected
from attncli.commands.experiment import EXPECT, STORE, errors_at, run_experiment
from attncli.commands.output import Destination, checked_store, progress_line
from attncli.errors import UserError
from attncli.settings import matching_form, spec_class_of
from attncli.settings.fields import checked_spec, values_of
from attncli.settings.heads import HeadsSpec

if TYPE_CHECKING:
    from attncli.records.report import Report


DISPLAY_KEYS = ("sort", "ascending", "top", "table", "statistic")
"""Settings that change how a report is displayed, but not the stored values."""


def run_heads(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    expect: Sequence[str],
    **store_flags: Any,
) -> int:
    """Survey one text or many. If requested, write the survey to a store or read it from a store."""
    from attncli.system.files import is_store_name

    new_store = Path(destination["output"]) if is_store_name(destination["output"] or "") else None
    if errors := [*store_errors(new_store, store_flags)]:
        raise UserError(*errors)
    if store is not None:
        return show_store(store, config, flags, Destination(**destination, experiment=name), expect)
    if new_store is None or show_config:
        return run_experiment(name, config, show_config, flags, destination, expect)
    to = Destination(**{**destination, "output": None}, experiment=name)
    return keep_survey(new_store, config, flags, to, expect, **store_flags)


def keep_survey(
    path: Path,
    config: str | None,
    flags: dict[str, Any],
    to: Destination,
    expect: Sequence[str],
    **store_flags: Any,
) -> int:
    """Survey every text that is not yet in the store, then write the summary of all texts."""
    from attncli.commands.keeping import keep
    from attncli.runs.plan import plan_texts

    checked_store(path)
    given = given_settings("heads", config, flags)
    spec = checked_spec(spec_class_of("heads", values_of(given)), given)
    if not isinstance(spec, HeadsSpec) or spec.texts is None:
        form = matching_form("heads", values_of(given))
        kind = ""
        if isinstance(spec, HeadsSpec) and spec.read_file is not None:
            kind = f"{spec.read_file.what}s"
        elif form is not None and getattr(spec, form.asked_by.split()[0], None):
            kind = form.name
        advice = f"-o FILE.json writes {kind}" if kind else "use --texts FILE"
        raise UserError(f"-o {path}: is a store, which takes only surveys of many texts: {advice}")
    expected = Expected(expect, spec)
    with errors_at(spec, given, config), spec.opened_texts() as file:
        # A run stores every statistic of every head on one text, whatever the display settings are.
        off = dict.fromkeys(("texts", "text_group", "probe", "num_tokens", "sort"))
        unsorted = {key: HeadsSpec.model_fields[key].default for key in DISPLAY_KEYS if key != "sort"}
        plan = plan_texts(spec.model_copy(update={**off, **unsorted}), "attn heads", file)
        code = keep(plan, path, rows=False, weights=False, conditions=(), fail_fast=False, **store_flags)
    report = _stored_survey(path, spec, {})
    expected.check(report)
    expected.write(to, [report])
    return code or expected.exit_code()


def show_store(
    store: str, config: str | None, flags: dict[str, Any], to: Destination, expect: Sequence[str]
) -> int:
    """Show the stored survey with the display settings."""
    given = given_settings("heads", config, flags)
    spec = checked_spec(HeadsSpec, {key: given[key] for key in given if key in DISPLAY_KEYS})
    choice = {key: given[key].value for key in given if key not in DISPLAY_KEYS}
    report = _stored_survey(Path(store), spec, choice)
    expected = Expected(expect, spec.model_copy(update={"texts": store}))
    expected.check(report)
    expected.write(to, [report])
    return expected.exit_code()


def _stored_survey(path: Path, spec: "HeadsSpec", choice: dict[str, Any]) -> "Report":
    """Return the stored survey that has the chosen settings. Raises UserError unless there is exactly one."""
    with progress_line() as line:
        line.begin(f"reading {path.name}")
        from attncli.features.heads.stored_surveys import store_report
        from attncli.runs.reading import reading

        display = spec.model_dump(include={*DISPLAY_KEYS})
        with reading(path) as reader:
            return store_report(path, reader, display, choice)


command = partial(
    experiment.command,
    more=(STORE, EXPECT, FRESH, replace(WORKERS, everyday=""), SCHEDULER),
    run_with=run_heads,
)
