"""The `attn separate` command, which reads texts from a file or a store, and can also fill a store."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attncli.commands import experiment
from attncli.commands.command import FRESH, SCHEDULER, WORKERS, given_settings, store_errors
from attncli.commands.expectations import Expected
from attncli.commands.experiment import EXPECT, STORE, errors_at, run_experiment
from attncli.commands.output import Destination, checked_store, progress_line
from attncli.core.progress import Stage
from attncli.errors import DONE, SOME_FAILED, UserError
from attncli.settings import SPECS
from attncli.settings.fields import Given, checked_spec
from attncli.system.plain_text import plain_text

if TYPE_CHECKING:
    from attncli.features.separate.question import SeparateSpec


FITTING = "fitting detectors"


TEXT_STORE = replace(
    STORE, help="Use the text statistics that an earlier survey stored, instead of running the model."
)


def run_separate(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    expect: Sequence[str],
    **store_options: Any,
) -> int:
    """Run `attn separate` on texts, which may come from a store or may first be measured into a store."""
    from attncli.system.files import is_store_name

    target = Path(destination["output"]) if is_store_name(destination["output"] or "") else None
    if errors := [*store_errors(target, store_options)]:
        raise UserError(*errors)
    settings = given_settings(name, config, flags)
    _refuse_unlabelled(settings, expect)
    texts = settings.get("texts")
    source = store or (str(texts.value) if texts and is_store_name(str(texts.value)) else None)
    if show_config or not (target or source):
        from attncli.features.separate.question import page_reports

        code = run_experiment(name, config, show_config, flags, destination, expect, page_reports)
        if not show_config and "apply" not in settings:
            _print_next_step(destination, settings)
        return code
    if target is not None:
        if source is not None:
            problem = f"cannot be combined with the store {source}"
            raise UserError(f"-o {target}: {problem}: use -o FILE.json for the report")
        destination = {**destination, "output": None}
    for key in ("apply", *(["model"] if source else [])):
        if key in settings:
            why = "which already names a model" if key == "model" else "which is used to fit a detector"
            raise UserError(
                settings[key].line(key, f"cannot be combined with the store {source or target}, {why}")
            )
    spec = checked_spec(
        SPECS[name],
        settings | ({} if texts or not store else {"texts": Given(store, "--store", is_flag=True)}),
    )
    to = Destination(**destination, experiment=name)
    code = DONE
    with errors_at(spec, settings, config):
        if target is not None:
            code = _measure_texts(target, spec, **store_options)
            spec = spec.model_copy(update={"texts": str(target)})
        with progress_line() as line:
            path = target or Path(str(source))
            line.begin(f"reading {path.name}")
            from attncli.features.separate.measured_texts import store_report
            from attncli.features.separate.question import page_reports

            def progress(share: float) -> None:
                line.stage(Stage(FITTING, share, 1.0))

            report = store_report(path, cast("SeparateSpec", spec), draws=to.view.draws, progress=progress)
    expected = Expected(expect, spec)
    expected.check(report)
    expected.write(to, [*page_reports(report)] if to.view.draws and to.view.whole else [report])
    _print_next_step(destination, settings)
    return code or expected.exit_code()


def _refuse_unlabelled(settings: Mapping[str, Given], expect: Sequence[str]) -> None:
    """Raise UserError for a condition on a detector's performance if the texts have no labels."""
    if "apply" not in settings or "label" in settings:
        return
    for text in expect:
        if text.strip().startswith("measured."):
            raise UserError(f"--expect '{text}': requires --label, the name of the label column")


def _print_next_step(destination: Mapping[str, Any], settings: Mapping[str, Given]) -> None:
    """Print the command to apply the detector that was just written."""
    file = destination.get("output") or ""
    if file.endswith(".json") and sys.stderr.isatty():
        model = "".join(f" --model {each.value}" for key, each in settings.items() if key == "model")
        print(plain_text(f"Next: attn separate FILE.csv --apply {file}{model}"), file=sys.stderr)


def _measure_texts(path: Path, spec: Any, **store_options: Any) -> int:
    """Measure every text that is not yet in the store, except texts that the model cannot read."""
    from attncli.commands.keeping import keep
    from attncli.features.separate.measured_texts import has_failed, measuring_plan
    from attncli.models.labelled_files import LabelNames, WholeLines

    checked_store(path)
    with WholeLines(spec.texts, LabelNames.of(spec.label), spec.hold_out) as file:
        code = keep(
            measuring_plan(spec, file),
            path,
            rows=False,
            weights=False,
            conditions=(),
            fail_fast=False,
            **store_options,
        )
    return DONE if code == SOME_FAILED and not has_failed(path) else code


command = partial(
    experiment.command,
    more=(
        TEXT_STORE,
        replace(
            EXPECT,
            help='A condition that must hold, or exit 1: "held_out.auroc > 0.8"; repeatable.',
        ),
        FRESH,
        replace(WORKERS, everyday=""),
        SCHEDULER,
    ),
    run_with=run_separate,
)
