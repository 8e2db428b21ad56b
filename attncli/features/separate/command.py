"""The command `attn separate`: texts from a file, or from a store that it fills or reads."""

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


STORE_OF_TEXTS = replace(
    STORE, help="Take what was measured of the texts from the store of a survey of them, and run nothing."
)


def run_separate(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    expect: Sequence[str],
    **of_store: Any,
) -> int:
    """What separates texts, which may be measured into a store first, or have been."""
    from attncli.system.files import is_store_name

    kept = Path(destination["output"]) if is_store_name(destination["output"] or "") else None
    if errors := [*store_errors(kept, of_store)]:
        raise UserError(*errors)
    given = given_settings(name, config, flags)
    _refuse_unlabelled(given, expect)
    texts = given.get("texts")
    source = store or (str(texts.value) if texts and is_store_name(str(texts.value)) else None)
    if show_config or not (kept or source):
        from attncli.features.separate.question import of_page

        code = run_experiment(name, config, show_config, flags, destination, expect, of_page)
        if not show_config and "apply" not in given:
            _say_how_to_apply(destination, given)
        return code
    if kept is not None:
        if source is not None:
            other = f"cannot be combined with the store {source}"
            raise UserError(f"-o {kept}: {other}: -o FILE.json keeps reports")
        destination = {**destination, "output": None}
    for key in ("apply", *(["model"] if source else [])):
        if key in given:
            why = "which names its model" if key == "model" else "which holds texts to fit a detector to"
            raise UserError(
                given[key].line(key, f"cannot be combined with the store {source or kept}, {why}")
            )
    spec = checked_spec(
        SPECS[name], given | ({} if texts or not store else {"texts": Given(store, "--store")})
    )
    to = Destination(**destination, experiment=name)
    code = DONE
    with errors_at(spec, given, config):
        if kept is not None:
            code = _measure_texts(kept, spec, **of_store)
            spec = spec.model_copy(update={"texts": str(kept)})
        with progress_line() as line:
            path = kept or Path(str(source))
            line.begin(f"reading {path.name}")
            from attncli.features.separate.measured_texts import report_of_store
            from attncli.features.separate.question import of_page

            def progress(share: float) -> None:
                line.stage(Stage(FITTING, share, 1.0))

            report = report_of_store(path, cast("SeparateSpec", spec), draws=to.view.draws, progress=progress)
    expected = Expected(expect, spec)
    expected.check(report)
    expected.write(to, [*of_page(report)] if to.view.draws and to.view.whole else [report])
    _say_how_to_apply(destination, given)
    return code or expected.exit_code()


def _refuse_unlabelled(given: Mapping[str, Given], expect: Sequence[str]) -> None:
    """Raise UserError for a condition on how well a detector does on texts whose labels are not known."""
    if "apply" not in given or "label" in given:
        return
    for text in expect:
        if text.strip().startswith("measured."):
            raise UserError(f"--expect '{text}': needs --label, the column that says which texts are which")


def _say_how_to_apply(destination: Mapping[str, Any], given: Mapping[str, Given]) -> None:
    """What to type next where a detector was written."""
    file = destination.get("output") or ""
    if file.endswith(".json") and sys.stderr.isatty():
        model = "".join(f" --model {each.value}" for key, each in given.items() if key == "model")
        print(plain_text(f"Next: attn separate FILE.csv --apply {file}{model}"), file=sys.stderr)


def _measure_texts(path: Path, spec: Any, **of_store: Any) -> int:
    """Measure every text that a store does not have yet; those that the model cannot read are left out."""
    from attncli.commands.keeping import keep
    from attncli.features.separate.measured_texts import has_failed, plan_of
    from attncli.models.labelled_files import LabelNames, WholeLines

    checked_store(path)
    with WholeLines(spec.texts, LabelNames.of(spec.label), spec.hold_out) as file:
        code = keep(
            plan_of(spec, file),
            path,
            rows=False,
            weights=False,
            conditions=(),
            fail_fast=False,
            **of_store,
        )
    return DONE if code == SOME_FAILED and not has_failed(path) else code


command = partial(
    experiment.command,
    more=(
        STORE_OF_TEXTS,
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
