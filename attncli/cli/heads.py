"""`attn heads`: an experiment whose survey of many texts may be kept in a store."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.batch.store.store_file import is_store_name
from attncli.cli import experiment
from attncli.cli.command import option
from attncli.cli.experiment import errors_at, given_settings, run_experiment
from attncli.cli.flags import FRESH, SCHEDULER, WORKERS, store_errors
from attncli.cli.output import Destination, checked_path
from attncli.errors import UserError
from attncli.spec.config.validation import checked_spec

if TYPE_CHECKING:
    from attncli.report import Report

STORE = option(
    "--store",
    "Show a survey of what attn batch, or attn heads --texts -o FILE.db, has kept of many texts.",
    "FILE.db",
    group="Input",
)


def run_heads(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    shown: dict[str, Any],
    store: str | None,
    **of_store: Any,
) -> int:
    """The survey of one text or of many; that of many may be kept in a store, or read from one."""
    kept = Path(shown["output"]) if is_store_name(shown["output"] or "") else None
    if errors := [*store_errors(kept, of_store)]:
        raise UserError(*errors)
    if store is not None:
        return show_store(store, config, flags, Destination(**shown))
    if kept is None or show_config:
        return run_experiment(name, config, show_config, flags, shown)
    return keep_survey(kept, config, flags, Destination(**{**shown, "output": None}), **of_store)


def keep_survey(
    path: Path, config: str | None, flags: dict[str, Any], to: Destination, **of_store: Any
) -> int:
    """Survey every text that the store does not have yet; then write the summary of all."""
    from attncli.batch.plan import plan_of_texts
    from attncli.batch.store.survey import kept_spec
    from attncli.cli.batches.kept import keep
    from attncli.experiments.reading.text_file import TextFile
    from attncli.spec.models.heads import HeadsSpec

    checked_path(str(path))
    given = given_settings("heads", config, flags)
    spec = checked_spec(HeadsSpec, given)
    if spec.texts is None:
        advice = "-o FILE.json keeps relations" if spec.relations else "give --texts FILE"
        raise UserError(f"-o {path}: is a store, which keeps many texts: {advice}")
    with errors_at(given), TextFile(spec.texts, spec.text_group) as file:
        plan = plan_of_texts(kept_spec(spec), file)
        code = keep(plan, path, rows=False, weights=False, conditions=(), fail_fast=False, **of_store)
    to.write([survey_of_store(path, spec)])
    return code


def show_store(store: str, config: str | None, flags: dict[str, Any], to: Destination) -> int:
    """Write the survey that a store has kept, shown as the settings say."""
    from attncli.batch.store.survey import DISPLAY_KEYS
    from attncli.spec.models.heads import HeadsSpec

    given = given_settings("heads", config, flags)
    spec = checked_spec(HeadsSpec, {key: given[key] for key in given if key in DISPLAY_KEYS})
    choice = {key: given[key].value for key in given if key not in DISPLAY_KEYS}
    to.write([survey_of_store(Path(store), spec, choice)])
    return 0


def survey_of_store(path: Path, spec: Any, choice: dict[str, Any] | None = None) -> "Report":
    """The report of the chosen survey in a store; UserError where there is none, or several."""
    from attncli.batch.store.reading import reading
    from attncli.batch.store.survey import store_report

    with reading(path) as reader:
        return store_report(path, reader, spec, choice or {})


command = partial(experiment.command, more=(STORE, FRESH, WORKERS, SCHEDULER), run_with=run_heads)
