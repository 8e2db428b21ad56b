"""A command for an experiment: its flags are the settings of its Spec."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attncli.commands.command import (
    CONFIG,
    DEBUG,
    FRESH,
    OUTPUT_FLAGS,
    SCHEDULER,
    SHOW,
    STEP,
    WORKERS,
    Command,
    Parameter,
    argument,
    flag,
    given_settings,
    metavar,
    option,
    setting_options,
    store_errors,
    with_piped_text,
)
from attncli.commands.mistakes import CHECKPOINTS, unquoted
from attncli.commands.output import Destination, checked_store, first_words, progress_line
from attncli.core.progress import Stage
from attncli.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    SOME_FAILED,
    ClosedPipe,
    UserError,
    forget_stdout,
)
from attncli.models.text_files import KINDS_OF_FILES
from attncli.plain_text import note, plain_text
from attncli.settings import SPECS
from attncli.settings.config_file import resolved_yaml
from attncli.settings.fields import (
    ExplainSpec,
    Given,
    Spec,
    checked_spec,
    flag_name,
    in_words_of,
    with_maps,
)
from attncli.settings.text import names_file
from attncli.systems import shell_line

if TYPE_CHECKING:
    from attncli.features.separate.question import SeparateSpec
    from attncli.report import Report
    from attncli.runs.report_values import Expectations as _Expectations
    from attncli.settings.heads import HeadsSpec


MAX_METAVAR = 30
SHOW_CONFIG = flag("--show-config", "Print the resolved settings, each with its origin, and exit.")


@contextmanager
def running(spec: Spec) -> "Iterator[Iterator[Report]]":
    """The report of one experiment, computed when it is iterated over; progress on standard error."""
    from attncli.runs.plan import Item
    from attncli.runs.runner import run_items

    def fail(item: Item, error: UserError) -> None:
        raise error

    with progress_line() as progress:
        progress.begin(first_words([spec.model_source()]))

        def reports() -> "Iterator[Report]":
            for report in run_items([Item(spec)], fail, progress):
                progress.clear()
                yield report

        yield reports()


@contextmanager
def errors_at(spec: Spec, given: dict[str, Given], config: str | None) -> Iterator[None]:
    """An error of the run about a setting names its flag, or its line of a file; its kind is kept."""
    try:
        yield
    except UserError as error:
        parts = [line.partition(": ") for line in error.lines]
        lines = [
            given[key].line(key, message)
            if key in given
            else in_words_of(
                f"`{key}`{colon}{message}" if key in type(spec).model_fields else f"{key}{colon}{message}",
                flags=config is None,
            )
            for key, colon, message in parts
        ]
        error.lines = tuple(lines)
        raise


class Expected:
    """The conditions of --expect, each checked in every report that is written."""

    def __init__(self, texts: Sequence[str], spec: Spec) -> None:
        """Raise UserError for an invalid condition, and for a name that no report of the spec will have."""
        self._expectations: _Expectations | None = None
        self._broken: list[str] = []
        if not texts:
            return
        from attncli.runs.report_values import Expectations, parse_conditions, refuse_unknown

        conditions = parse_conditions(texts, "--expect", numbers_only=True)
        refuse_unknown(conditions, [spec], rows=False)
        self._expectations = Expectations(conditions)

    def check(self, report: "Report") -> None:
        """Note what does not hold in a report."""
        if self._expectations is None:
            return
        from attncli.runs.report_values import values_of

        self._broken += self._expectations.broken(*values_of(report))

    def write(self, to: Destination, reports: "Iterable[Report]") -> None:
        """Write reports; where a reader has gone, conditions still say how the command ends."""
        rest = iter(reports)
        try:
            to.write(rest)
        except ClosedPipe:
            if self._expectations is None:
                raise
            forget_stdout()
            for _ in rest:  # each is checked as it is read
                pass

    def exit_code(self) -> int:
        """1, with a line on standard error for each condition that did not hold; else 0."""
        lines = [] if self._expectations is None else [*self._broken, *self._expectations.unmet()]
        for line in lines:
            print(plain_text(line), file=sys.stderr)
        return FAILED if lines else DONE


def run_experiment(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    expect: Sequence[str] = (),
    of_page: "Callable[[Report], Iterator[Report]] | None" = None,
) -> int:
    """flags and YAML -> Spec -> Report -> view. Returns 1 where an expectation does not hold."""
    to = Destination(**destination, experiment=name)
    given = given_settings(name, config, flags)
    given = with_piped_text(SPECS[name], given)
    if to.view.draws:
        given = with_maps(SPECS[name], given, f"the {to.format} view")
    spec = checked_spec(SPECS[name], given)
    if to.display.step is not None and not (isinstance(spec, ExplainSpec) and spec.explain):
        raise UserError("--step: needs --explain, whose step it shows")
    if show_config:
        print(resolved_yaml(spec, given), end="")
        return DONE
    _refuse_unmade_weights(spec, to)
    is_unfinished = False
    expected = Expected(expect, spec)

    def noted(reports: "Iterator[Report]") -> "Iterator[Report]":
        nonlocal is_unfinished
        for report in reports:
            is_unfinished = report.is_unfinished
            expected.check(report)
            yield from (
                of_page(report) if of_page is not None and to.view.draws and to.view.whole else (report,)
            )

    with running(spec) as reports, errors_at(spec, given, config):
        expected.write(to, noted(reports))
    if is_unfinished:
        return INTERRUPTED
    return expected.exit_code()


def _refuse_unmade_weights(spec: Spec, to: Destination) -> None:
    """Raise UserError for --show weights of a survey that keeps no maps."""
    if "weights" in to.display.show and spec.model_dump().get("maps") == "none":
        raise UserError(f"--show: this report holds no weights: {spec.parts_elsewhere.get('weights')}")


LONG_DASHES = ("\N{EN DASH}", "\N{EM DASH}")


def refuse_file_name(text: str, keys: Iterable[str] = ()) -> None:
    """Raise UserError for the name of a file where a text is meant, or for a flag with a long dash.

    `keys` are the settings of the command, which may read pictures or sound.
    """
    if text.startswith(LONG_DASHES):
        flag = f"--{text.lstrip(''.join(LONG_DASHES))}"
        raise UserError(f"{text:.60}: begins with a long dash, and a flag with two short ones: {flag:.60}")
    path = Path(text)
    if path.suffix and not any(map(str.isspace, text)) and path.is_file():
        for key, kind in KINDS_OF_FILES.items():
            if kind.is_one(path):
                by = f"--{key} {text}" if key in keys else f"attn heads --{key} {text}"
                raise UserError(f"{text}: is a {kind.name}: {by} --model MODEL reads it")
        reads = "--config" if path.suffix in (".yaml", ".yml") else "--file"
        advice = f"{reads} {text} reads it, --sentence {text} takes its name as the text"
        raise UserError(f"{text}: is a file: {advice}")


@contextmanager
def _errors_of_argument(key: str | None, name: str | None) -> Iterator[None]:
    """Name the argument as help does, TEXT, in errors about its setting, in place of a flag nobody typed."""
    try:
        yield
    except UserError as error:
        if key is not None and name is not None:
            named = re.compile(rf"(?:^|(?<=combined with )){re.escape(flag_name(key))}(?=: | \(|$)")
            error.lines = tuple(named.sub(name, line) for line in error.lines)
        raise


def _showing(show: Parameter, parts: Sequence[str]) -> Parameter:
    """--show of an experiment, which names the parts that its reports have."""
    if not parts:
        return show
    listed = ", ".join(parts)
    return replace(
        show,
        help=show.help.replace(", ".join(show.choices), f"{listed}, all"),
        choices=(*parts, "all"),
        everyday=f"{listed}, ..., all",
    )


def command(
    name: str, summary: str, more: Sequence[Parameter] = (), run_with: Callable[..., int] = run_experiment
) -> Command:
    """The command of an experiment; the values of `more` parameters go to `run_with` by their names."""
    spec_class = SPECS[name]
    fields, bare = spec_class.model_fields, spec_class.argument
    # The skip_sink of the survey is a setting, and what has no steps has no --step.
    unused = fields.keys() | (set() if "explain" in fields else {STEP.name})
    output_flags = [
        _showing(parameter, spec_class.parts) if parameter.name == SHOW.name else parameter
        for parameter in OUTPUT_FLAGS
        if parameter.name not in unused
    ]
    settings = [
        replace(parameter, everyday="") if parameter.name == bare else parameter
        for parameter in setting_options(spec_class)
    ]
    choices = "" if bare is None else metavar(bare, fields[bare])
    name_of_value = choices if len(choices) <= MAX_METAVAR else str(bare).upper()
    parameters: list[Parameter] = [*(*settings, CONFIG, SHOW_CONFIG, *output_flags, *more, DEBUG)]

    def run(config: str | None, show_config: bool, argument: str | None = None, **values: Any) -> int:
        flags = {key: values[key] for key in fields}
        key = bare
        if bare is not None and argument is not None:
            takes_file = flags.get("compare") or flags.get("learn")
            is_file = argument == "-" or (takes_file and names_file(argument))
            key = "file" if is_file and bare == "sentence" and "file" in fields else bare
            if flags[key] is not None:
                raise UserError(
                    f"{flag_name(key)}: cannot be combined with the argument ({argument}): give one"
                )
            if key == "sentence":
                refuse_file_name(argument, fields)
            flags[key] = argument
        destination = {
            parameter.name: values[parameter.name] for parameter in output_flags if parameter.is_passed
        }
        others = {parameter.name: values[parameter.name] for parameter in more}
        with _errors_of_argument(key, "TEXT" if key == "sentence" and argument is not None else None):
            return run_with(name, config, show_config, flags, destination, **others)

    if bare is not None:
        meaning = in_words_of(str(fields[bare].description), flags=True)
        parameters.append(argument("argument", meaning, name_of_value, required=False))
    return Command(name, summary, run, parameters, spec_class.examples)


STORE = option(
    "--store",
    "Show a survey of what attn batch, or attn heads --texts -o FILE.db, has kept of many texts.",
    "FILE.db",
    group="Input",
    reads_file=True,
)


OF_WATCH = (
    replace(option(CHECKPOINTS, "See attn watch.", "PATTERN", kind=list[str]), hidden=True),
    replace(flag("--follow", "See attn watch."), hidden=True),
)
"""How attn watch of checkpoints was spelled before: still read."""
EXPECT = option(
    "--expect",
    'A condition that every head must meet, or exit 1: "max_score < 100", of --pairs "best.hit > 0.9"; '
    "repeatable.",
    "CONDITION",
    kind=list[str],
    group="Input",
)


DISPLAY_KEYS = ("sort", "ascending", "top", "table", "statistic")
"""Settings that change what a report shows but not what a store keeps."""


def run_heads(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    checkpoints: Sequence[str],
    follow: bool,
    expect: Sequence[str],
    **of_store: Any,
) -> int:
    """The survey of one text or of many, which may be written to a store or read from one."""
    from attncli.runs.store_files import is_store_name

    kept = Path(destination["output"]) if is_store_name(destination["output"] or "") else None
    if follow and not checkpoints:
        raise UserError("--follow: is a flag of attn watch")
    if errors := [*store_errors(kept, of_store)]:
        raise UserError(*errors)
    if checkpoints:
        return _watch(
            checkpoints, config, show_config, flags, destination, store, kept, follow, expect, **of_store
        )
    if store is not None:
        return show_store(store, config, flags, Destination(**destination, experiment=name), expect)
    if kept is None or show_config:
        return run_experiment(name, config, show_config, flags, destination, expect)
    to = Destination(**{**destination, "output": None}, experiment=name)
    return keep_survey(kept, config, flags, to, expect, **of_store)


def _watch(
    checkpoints: Sequence[str],
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    store: str | None,
    kept: Path | None,
    follow: bool,
    expect: Sequence[str],
    *,
    fresh: bool,
    workers: int | None,
    scheduler: str | None,
) -> int:
    """The heads of checkpoints over the steps, as `attn watch` shows them, and a line that says so."""
    from attncli.features.watch.question import watch_checkpoints

    text = flags["sentence"]
    if text is not None and Path(text).is_dir():
        raise UserError(unquoted([*checkpoints, text]))
    meaningless = {
        "store": store,
        "workers": workers,
        "scheduler": scheduler,
        "show-config": show_config or None,
    }
    if errors := [
        f"--{name}: is not for --checkpoints" for name, value in meaningless.items() if value is not None
    ]:
        raise UserError(*errors)
    note(f"attn heads --checkpoints is now attn watch {shell_line(checkpoints)}")
    to = Destination(**(destination if kept is None else {**destination, "output": None}), experiment="watch")
    others = {**flags, "head": None}
    return watch_checkpoints(
        checkpoints,
        config,
        others,
        to,
        kept=kept,
        head=flags["head"],
        expect=expect,
        follow=follow,
        fresh=fresh,
    )


def keep_survey(
    path: Path,
    config: str | None,
    flags: dict[str, Any],
    to: Destination,
    expect: Sequence[str],
    **of_store: Any,
) -> int:
    """Survey every text that the store does not have yet; then write the summary of all."""
    from attncli.commands.batch import keep
    from attncli.models.text_files import TextFile
    from attncli.runs.plan import plan_of_texts
    from attncli.settings.heads import HeadsSpec

    checked_store(path)
    given = given_settings("heads", config, flags)
    spec = checked_spec(HeadsSpec, given)
    if spec.texts is None:
        others = {"relations": "relations", "pairs": "pairs", "image": "pictures", "sound": "sounds"}
        other = next((kept for setting, kept in others.items() if getattr(spec, setting) is not None), "")
        advice = f"-o FILE.json keeps {other}" if other else "give --texts FILE"
        raise UserError(f"-o {path}: is a store, which keeps many texts: {advice}")
    expected = Expected(expect, spec)
    with errors_at(spec, given, config), TextFile(spec.texts, spec.text_group) as file:
        # A run keeps every statistic of every head of one text, whatever is shown.
        off = dict.fromkeys(("texts", "text_group", "probe", "num_tokens", "sort"))
        unsorted = {key: HeadsSpec.model_fields[key].default for key in DISPLAY_KEYS if key != "sort"}
        plan = plan_of_texts(spec.model_copy(update={**off, **unsorted}), "attn heads", file)
        code = keep(plan, path, rows=False, weights=False, conditions=(), fail_fast=False, **of_store)
    report = _survey_of_store(path, spec, {})
    expected.check(report)
    expected.write(to, [report])
    return code or expected.exit_code()


def show_store(
    store: str, config: str | None, flags: dict[str, Any], to: Destination, expect: Sequence[str]
) -> int:
    """Write the survey that a store has kept, shown as the settings say."""
    from attncli.settings.heads import HeadsSpec

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
        from attncli.commands.surveys import store_report
        from attncli.runs.reading import reading

        display = spec.model_dump(include={*DISPLAY_KEYS})
        with reading(path) as reader:
            return store_report(path, reader, display, choice)


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
    from attncli.runs.store_files import is_store_name

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
        _refuse_other_stores(kept, source)
        destination = {**destination, "output": None}
    spec = checked_spec(
        SPECS[name], given | ({} if texts or not store else {"texts": Given(store, "--store")})
    )
    for key in ("apply", *(["model"] if source else [])):
        if key in given:
            why = "which names its model" if key == "model" else "which holds texts to fit a detector to"
            raise UserError(
                given[key].line(key, f"cannot be combined with the store {source or kept}, {why}")
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


def _refuse_other_stores(kept: Path, source: str | None) -> None:
    from attncli.runs.store_files import is_file_name

    if not is_file_name(kept):
        raise UserError(f"-o {kept}: is a store in a folder, which keeps no labels: -o FILE.db keeps them")
    if source is not None:
        raise UserError(f"-o {kept}: cannot be combined with the store {source}: -o FILE.json keeps reports")


def _say_how_to_apply(destination: Mapping[str, Any], given: Mapping[str, Given]) -> None:
    """What to type next where a detector was written."""
    file = destination.get("output") or ""
    if file.endswith(".json") and sys.stderr.isatty():
        model = "".join(f" --model {each.value}" for key, each in given.items() if key == "model")
        print(plain_text(f"Next: attn separate FILE.csv --apply {file}{model}"), file=sys.stderr)


def _measure_texts(path: Path, spec: Any, **of_store: Any) -> int:
    """Measure every text that a store does not have yet; those that the model cannot read are left out."""
    from attncli.commands.batch import keep
    from attncli.features.separate.measured_texts import has_failed, plan_of
    from attncli.models.labelled_texts import LabelNames, WholeLines

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


separate_command = partial(
    command,
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


heads_command = partial(
    command,
    more=(STORE, *OF_WATCH, EXPECT, FRESH, replace(WORKERS, everyday=""), SCHEDULER),
    run_with=run_heads,
)
