"""A command for an experiment: its flags are the settings of its Spec."""

import io
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISFIFO, S_ISREG
from typing import TYPE_CHECKING, Any

import typer

from attncli.cli.command import DONE, INTERRUPTED, Command, Parameter, argument, flag, option
from attncli.cli.flags import DEBUG, OUTPUT_FLAGS
from attncli.cli.output import Destination
from attncli.cli.settings import flag_name, given_flags, metavar, setting_options
from attncli.errors import UserError
from attncli.spec import SPECS
from attncli.spec.config.config_file import ConfigFile
from attncli.spec.config.resolved import resolved_yaml
from attncli.spec.config.validation import Given, checked_spec, with_maps
from attncli.spec.fields import Spec
from attncli.spec.text import ALTERNATIVES

if TYPE_CHECKING:
    from attncli.report import Report

CONFIG = option("--config", "Read settings from a YAML file; flags override the file.", "FILE")
# The settings that choose what is read; without any of them the text may come from a pipe.
TEXT_KEYS = frozenset((*ALTERNATIVES[0], "context_file", "probe"))
WAIT_SECONDS = 0.5
"""How long a pipe may stay silent: some never send anything and never end."""
SHOW_CONFIG = flag("--show-config", "Print the resolved settings, each with its origin, and exit.")


def given_settings(name: str, config: str | None, flags: dict[str, Any]) -> dict[str, Given]:
    """The settings of a config file and of the flags; flags override the file."""
    given = ConfigFile(Path(config)).single(name) if config is not None else {}
    from_flags = given_flags(flags)
    for group in ALTERNATIVES:
        if from_flags.keys() & group:
            given = {key: value for key, value in given.items() if key not in group}
    return given | from_flags


@contextmanager
def running(spec: Spec) -> "Iterator[Iterator[Report]]":
    """The report of one experiment, computed when it is iterated over; progress on standard error."""
    from attncli.batch.plan import Item
    from attncli.batch.serial import run_items
    from attncli.cli.progress import progress_line

    def fail(item: Item, error: UserError) -> None:
        raise error

    with progress_line() as progress:
        yield run_items([Item(spec)], fail, progress)


@contextmanager
def errors_at(given: dict[str, Given]) -> Iterator[None]:
    """An error of the run about a setting names its flag, or its line of a file; its kind is kept."""
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


def has_piped_text() -> bool:
    """Whether a pipe or a redirected file has text to read; none of it is consumed.

    A pipe that is still silent after half a second is ignored, with a line on standard error.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed by the caller, or not a file
        return False
    if not (S_ISFIFO(mode) or S_ISREG(mode)):
        return False
    if not select.select([sys.stdin], [], [], WAIT_SECONDS)[0]:
        print("stdin: no text came within half a second, so it is not read; --file - waits", file=sys.stderr)
        return False
    stream = sys.stdin.buffer
    return isinstance(stream, io.BufferedReader) and bool(stream.peek(1))


def with_piped_text(spec_class: type[Spec], given: dict[str, Given]) -> dict[str, Given]:
    """The settings, with the text waiting on standard input where they name none."""
    needs_text = "file" in spec_class.model_fields and not given.keys() & TEXT_KEYS
    return given | {"file": Given("-", "stdin")} if needs_text and has_piped_text() else given


def run_experiment(
    name: str, config: str | None, show_config: bool, flags: dict[str, Any], shown: dict[str, Any]
) -> int:
    """flags and YAML -> Spec -> Report -> view."""
    to = Destination(**shown)
    given = given_settings(name, config, flags)
    given = with_piped_text(SPECS[name], given)
    if to.view.draws:
        given = with_maps(SPECS[name], given, f"the {to.format} view")
    spec = checked_spec(SPECS[name], given)
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
    name: str, summary: str, more: Sequence[Parameter] = (), run_with: Callable[..., int] = run_experiment
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
