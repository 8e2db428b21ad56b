"""A command for an experiment: its flags are the settings of its Spec."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from attncli.cli.codes import DONE, INTERRUPTED
from attncli.cli.command import Command, Parameter, argument, flag, option
from attncli.cli.display import DEBUG, OUTPUT_FLAGS
from attncli.cli.output import Destination
from attncli.cli.settings import flag_name, given_flags, metavar, setting_options
from attncli.cli.terminal.piped_text import has_piped_text
from attncli.errors import UserError
from attncli.spec import SPECS
from attncli.spec.config.config_file import ConfigFile
from attncli.spec.config.resolved import resolved_yaml
from attncli.spec.config.validation import Given, checked_spec, with_maps
from attncli.spec.fields import Spec
from attncli.spec.text import ALTERNATIVES
from attncli.views import VIEWS

if TYPE_CHECKING:
    from attncli.report import Report

CONFIG = option("--config", "Read settings from a YAML file; flags override the file.", "FILE")
# Settings that say what is read; without any of them the text may come through a pipe.
TEXT_KEYS = frozenset((*ALTERNATIVES[0], "context_file", "probe"))
SHOW_CONFIG = flag("--show-config", "Print the resolved settings, each with its origin, and exit.")


def given_settings(name: str, config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """What a config file and the flags say; flags override the file."""
    given = ConfigFile(Path(config)).single(name) if config is not None else {}
    from_flags = given_flags(flags)
    for group in ALTERNATIVES:
        if from_flags.keys() & group:
            given = {key: value for key, value in given.items() if key not in group}
    return given | from_flags


@contextmanager
def running(spec: Spec) -> "Iterator[Iterator[Report]]":
    """The report of one experiment, made when it is asked for; progress on standard error."""
    from attncli.batch.plan import Item
    from attncli.batch.serial import run_items
    from attncli.cli.terminal.progress import progress_line

    def fail(item: Item, error: UserError) -> None:
        raise error

    with progress_line() as progress:
        yield run_items([Item(spec)], fail, progress)


@contextmanager
def errors_at(given: dict[str, Given]) -> Iterator[None]:
    """What the run refuses of a setting is said at its flag, or at its line of a file, as what it is."""
    try:
        yield
    except UserError as error:
        parts = [line.partition(": ") for line in error.lines]
        lines = [
            given[key].line(key, message) if key in given else f"{key}{colon}{message}"
            for key, colon, message in parts
        ]
        error.lines = tuple(lines)
        raise


def with_piped_text(spec_class: type[Spec], given: dict[str, Given]) -> dict[str, Given]:
    """The settings with the text that stands ready on standard input, where they name none."""
    needs_text = "file" in spec_class.model_fields and not given.keys() & TEXT_KEYS
    return given | {"file": Given("-", "stdin")} if needs_text and has_piped_text() else given


def run_experiment(
    name: str, config: str | None, show_config: bool, flags: dict[str, Any], shown: dict[str, Any]
) -> int:
    """flags and YAML -> Spec -> Report -> view."""
    to = Destination(**shown)
    given = given_settings(name, config, flags)
    given = with_piped_text(SPECS[name], given)
    if VIEWS[to.view].draws:
        given = with_maps(SPECS[name], given, f"the {to.view} view")
    spec = checked_spec(name, given)
    if to.display.step is not None and not getattr(spec, "explain", False):
        raise UserError("--step: needs --explain, whose step it shows")
    if show_config:
        typer.echo(resolved_yaml(spec, given), nl=False)
        return DONE
    is_unfinished = False

    def noted(reports: "Iterator[Report]") -> "Iterator[Report]":
        nonlocal is_unfinished
        for report in reports:
            is_unfinished = report.is_unfinished
            yield report

    with running(spec) as reports, errors_at(given):
        to.write(noted(reports))
    return INTERRUPTED if is_unfinished else DONE


def command(
    name: str,
    summary: str,
    more: Sequence[Parameter] = (),
    run_with: Callable[..., int] = run_experiment,
) -> Command:
    """The command of an experiment; the values of `more` parameters go to `run_with` by their names."""
    spec_class = SPECS[name]
    fields, bare = spec_class.model_fields, spec_class.argument
    # The survey leaves the keys of --skip-sink out of its statistics, too: there it is a setting.
    output_flags = [parameter for parameter in OUTPUT_FLAGS if parameter.name not in fields]
    parameters: list[Parameter] = [
        *(*setting_options(spec_class), CONFIG, SHOW_CONFIG, *output_flags, *more, DEBUG)
    ]

    def run(config: str | None, show_config: bool, argument: str | None = None, **values: Any) -> int:
        flags = {key: values[key] for key in fields}
        if bare is not None and argument is not None:
            if flags[bare] is not None:
                raise UserError(
                    f"{flag_name(bare)}: cannot be combined with the argument ({argument}): give one"
                )
            flags[bare] = argument
        shown = {parameter.name: values[parameter.name] for parameter in OUTPUT_FLAGS}
        others = {parameter.name: values[parameter.name] for parameter in more}
        return run_with(name, config, show_config, flags, shown, **others)

    if bare is not None:
        name_of_value = metavar(bare, fields[bare])
        parameters.append(argument("argument", f"{fields[bare].description}", name_of_value, required=False))
    return Command(name, summary, run, parameters, spec_class.examples)
