"""The command of an experiment, whose flags are the settings of its Spec."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.commands.command import (
    CONFIG,
    DEBUG,
    OUTPUT_FLAGS,
    SHOW,
    STEP,
    Command,
    Parameter,
    argument,
    flag,
    given_settings,
    metavar,
    option,
    setting_options,
    with_piped_text,
)
from attncli.commands.expectations import Expected
from attncli.commands.output import Destination, first_words, progress_line
from attncli.errors import DONE, INTERRUPTED, UserError
from attncli.settings import every_setting_of, spec_class_of
from attncli.settings.config_file import resolved_yaml
from attncli.settings.fields import (
    ExplainSpec,
    Given,
    Spec,
    checked_spec,
    flag_name,
    values_of,
    with_key_names,
    with_maps,
)

if TYPE_CHECKING:
    from attncli.records.report import Report


MAX_METAVAR = 30
SHOW_CONFIG = flag("--show-config", "Print the resolved settings, each with its origin, and exit.")


@contextmanager
def running(spec: Spec) -> "Iterator[Iterator[Report]]":
    """Yield the report of one experiment, computed when iterated over, with progress on standard error."""
    from attncli.runs.jobs import Item
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
    """In errors about a setting from this block, name the setting's flag or line; keep the errors' type."""
    try:
        yield
    except UserError as error:
        parts = [line.partition(": ") for line in error.lines]
        lines = [
            given[key].line(key, message)
            if key in given
            else with_key_names(
                f"`{key}`{colon}{message}" if key in type(spec).model_fields else f"{key}{colon}{message}",
                flags=config is None,
            )
            for key, colon, message in parts
        ]
        error.lines = tuple(lines)
        raise


def run_experiment(
    name: str,
    config: str | None,
    show_config: bool,
    flags: dict[str, Any],
    destination: dict[str, Any],
    expect: Sequence[str] = (),
    of_page: "Callable[[Report], Iterator[Report]] | None" = None,
) -> int:
    """Run an experiment: flags and YAML -> Spec -> Report -> view. Return 1 if an expectation is not met."""
    to = Destination(**destination, experiment=name)
    given = given_settings(name, config, flags)
    spec_class = spec_class_of(name, values_of(given))
    given = with_piped_text(spec_class, given)
    if to.view.draws:
        given = with_maps(spec_class, given, f"the {to.format} view")
    spec = checked_spec(spec_class, given)
    if to.display.step is not None and not (isinstance(spec, ExplainSpec) and spec.explain):
        raise UserError("--step: needs --explain, because it shows one step of the explanation")
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
    """Raise UserError for --show weights in a survey that keeps no maps."""
    if "weights" in to.display.show and spec.model_dump().get("maps") == "none":
        raise UserError(f"--show: this report holds no weights: {spec.parts_elsewhere.get('weights')}")


LONG_DASHES = ("\N{EN DASH}", "\N{EM DASH}")


def refuse_file_name(text: str, keys: Iterable[str] = ()) -> None:
    """Raise UserError if the text looks like a file name, or like a flag typed with a long dash.

    `keys` are the settings of the command, which may read files of other kinds.
    """
    if text.startswith(LONG_DASHES):
        flag = f"--{text.lstrip(''.join(LONG_DASHES))}"
        raise UserError(
            f"{text:.60}: begins with a long dash, but a flag begins with two hyphens: {flag:.60}"
        )
    path = Path(text)
    if path.suffix and not any(map(str.isspace, text)) and path.is_file():
        from attncli.models.text_files import FILE_KINDS

        for key, kind in FILE_KINDS.items():
            if kind.is_one(path):
                by = f"--{key} {text}" if key in keys else f"attn heads --{key} {text}"
                raise UserError(f"{text}: is a {kind.name}: use {by} --model MODEL to read it")
        reads = "--config" if path.suffix in (".yaml", ".yml") else "--file"
        advice = f"use {reads} {text} to read the file, or --sentence {text} to use its name as the text"
        raise UserError(f"{text}: is a file: {advice}")


@contextmanager
def _errors_of_argument(key: str | None, name: str | None) -> Iterator[None]:
    """In errors about the argument's setting, name the argument TEXT, as help does, instead of a flag."""
    try:
        yield
    except UserError as error:
        if key is not None and name is not None:
            named = re.compile(rf"(?:^|(?<=combined with )){re.escape(flag_name(key))}(?=: | \(|$)")
            error.lines = tuple(named.sub(name, line) for line in error.lines)
        raise


def _showing(show: Parameter, parts: Sequence[str]) -> Parameter:
    """Return the flag `--show` of an experiment, which names the parts that its reports have."""
    if not parts:
        return show
    listed = ", ".join(parts)
    return replace(
        show,
        help=show.help.replace(", ".join(show.choices), f"{listed}, all"),
        choices=(*parts, "all"),
        everyday=f"{listed}, ..., all",
    )


def _offered(examples: Sequence[str], parameters: Sequence[Parameter]) -> list[str]:
    """Return the examples for help, except those with flags of features that are off."""
    known = {part for parameter in parameters for flag in parameter.flags for part in flag.split("/")}
    words = {line: {word for word in line.split() if word.startswith("--")} for line in examples}
    return [line for line in examples if words[line] <= known]


def command(
    name: str, summary: str, more: Sequence[Parameter] = (), run_with: Callable[..., int] = run_experiment
) -> Command:
    """Build the command of an experiment; the values of the `more` parameters go to `run_with` by name."""
    spec_class = every_setting_of(name)
    fields, bare = spec_class.model_fields, spec_class.argument
    output_flags = [
        _showing(parameter, spec_class.parts) if parameter.name == SHOW.name else parameter
        for parameter in OUTPUT_FLAGS
        if parameter.name != STEP.name or "explain" in fields  # without steps
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
            key = spec_class_of(name, flags).setting_of_argument(argument) or bare
            if flags[key] is not None:
                raise UserError(
                    f"{flag_name(key)}: cannot be combined with the argument ({argument}): give one of them"
                )
            if key == "sentence":
                refuse_file_name(argument, fields)
            flags[key] = argument
        destination = {
            parameter.name: values[parameter.name] for parameter in output_flags if parameter.is_passed
        }
        others = {parameter.name: values[parameter.name] for parameter in more}
        is_text = bare == "sentence" and argument not in (None, "-")
        with _errors_of_argument(key, "TEXT" if is_text else None):
            return run_with(name, config, show_config, flags, destination, **others)

    if bare is not None:
        meaning = with_key_names(str(fields[bare].description), flags=True)
        parameters.append(argument("argument", meaning, name_of_value, required=False))
    return Command(
        name, summary, run, parameters, _offered(spec_class.examples, parameters), needs_torch=True
    )


STORE = option(
    "--store",
    "Show the survey of many texts in a store that attn batch or attn heads --texts -o FILE.db wrote.",
    "FILE.db",
    group="Input",
    reads_file=True,
)


EXPECT = option(
    "--expect",
    'Exit with code 1 unless every head meets this condition: "max_score < 100", or with --pairs '
    '"best.hit > 0.9"; repeatable.',
    "CONDITION",
    kind=list[str],
    group="Input",
)
