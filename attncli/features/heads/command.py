"""The command `attn heads`: a survey of one text or of many, kept in a store or read from one."""

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
from attncli.settings import form_asked_for, spec_class_of
from attncli.settings.fields import checked_spec, values_of
from attncli.settings.heads import HeadsSpec

if TYPE_CHECKING:
    from attncli.records.report import Report


DISPLAY_KEYS = ("sort", "ascending", "top", "table", "statistic")
"""Settings that change what a report shows but not what a store keeps."""


def run_heads(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    expect: Sequence[str],
    **of_store: Any,
) -> int:
    """The survey of one text or of many, which may be written to a store or read from one."""
    from attncli.system.files import is_store_name

    kept = Path(destination["output"]) if is_store_name(destination["output"] or "") else None
    if errors := [*store_errors(kept, of_store)]:
        raise UserError(*errors)
    if store is not None:
        return show_store(store, config, flags, Destination(**destination, experiment=name), expect)
    if kept is None or show_config:
        return run_experiment(name, config, show_config, flags, destination, expect)
    to = Destination(**{**destination, "output": None}, experiment=name)
    return keep_survey(kept, config, flags, to, expect, **of_store)


def keep_survey(
    path: Path,
    config: str | None,
    flags: dict[str, Any],
    to: Destination,
    expect: Sequence[str],
    **of_store: Any,
) -> int:
    """Survey every text that the store does not have yet; then write the summary of all."""
    from attncli.commands.keeping import keep
    from attncli.runs.plan import plan_texts

    checked_store(path)
    given = given_settings("heads", config, flags)
    spec = checked_spec(spec_class_of("heads", values_of(given)), given)
    if not isinstance(spec, HeadsSpec) or spec.texts is None:
        form = form_asked_for("heads", values_of(given))
        other = ""
        if isinstance(spec, HeadsSpec) and spec.read_file is not None:
            other = f"{spec.read_file.what}s"
        elif form is not None and getattr(spec, form.asked_by.split()[0], None):
            other = form.name
        advice = f"-o FILE.json keeps {other}" if other else "give --texts FILE"
        raise UserError(f"-o {path}: is a store, which keeps many texts: {advice}")
    expected = Expected(expect, spec)
    with errors_at(spec, given, config), spec.opened_texts() as file:
        # A run keeps every statistic of every head of one text, whatever is shown.
        off = dict.fromkeys(("texts", "text_group", "probe", "num_tokens", "sort"))
        unsorted = {key: HeadsSpec.model_fields[key].default for key in DISPLAY_KEYS if key != "sort"}
        plan = plan_texts(spec.model_copy(update={**off, **unsorted}), "attn heads", file)
        code = keep(plan, path, rows=False, weights=False, conditions=(), fail_fast=False, **of_store)
    report = _survey_of_store(path, spec, {})
    expected.check(report)
    expected.write(to, [report])
    return code or expected.exit_code()


def show_store(
    store: str, config: str | None, flags: dict[str, Any], to: Destination, expect: Sequence[str]
) -> int:
    """Write the survey that a store has kept, shown as the settings say."""
    given = given_settings("heads", config, flags)
    spec = checked_spec(HeadsSpec, {key: given[key] for key in given if key in DISPLAY_KEYS})
    choice = {key: given[key].value for key in given if key not in DISPLAY_KEYS}
    report = _survey_of_store(Path(store), spec, choice)
    expected = Expected(expect, spec)
    expected.check(report)
    expected.write(to, [report])
    return expected.exit_code()


def _survey_of_store(path: Path, spec: "HeadsSpec", choice: dict[str, Any]) -> "Report":
    """The stored survey with the chosen settings. Raises UserError where none or several match."""
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
