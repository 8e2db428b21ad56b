"""The command line, which builds every command and handles every error. Only this file imports Typer."""

import errno
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter as Keyword
from inspect import Signature
from itertools import pairwise
from keyword import iskeyword
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from attncli.core.runtime import package_with_damaged_metadata, tile_pass_in_use
from attncli.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    TRUTHS,
    ClosedPipe,
    UserError,
    WriteError,
    check_environment,
    discard_stdout,
    first_lines,
    is_about_memory,
    out_of_memory,
)
from attncli.feature import BrokenPlugin, Plugin, load_place, plugin_of
from attncli.settings import EXPERIMENTS, QUESTIONS, SPECS
from attncli.system.plain_text import LEGIBLE, forget_notes, plain_text
from attncli.system.signals import ENDING, end_as_by_default, end_quietly
from attncli.system.version import __version__

if TYPE_CHECKING:  # a page imports them, with pydantic, when its command is called
    from attncli.commands.command import Command, Parameter

HELP = """Show where each token looks: in a sentence, a model's heads or many runs.

attn alone shows a trained head; attn COMMAND --help-all shows every flag;
attn info shows versions, plugins and schemas.
"""


class CommandRow(NamedTuple):
    """A command in `attn --help`, and the place of the function that makes it, `function(name, summary)`."""

    summary: str
    place: str
    group: str


UNLISTED = "About attn"
"""The group of `attn info`, which the help names in its introduction instead of listing it."""
COMMAND_FROM_SPEC = "attncli.commands.experiment:command"
COMMANDS = {
    **{
        name: CommandRow(question.summary, question.command or COMMAND_FROM_SPEC, question.group)
        for name, question in QUESTIONS.items()
    },
    "info": CommandRow(
        "Versions, plugins, schemas, and papers to cite", "attncli.commands.info:command", UNLISTED
    ),
}
COMMAND_GROUPS = ("See", "Learn", "Models", "Many runs")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
# The headings of long help, in order. Any other heading belongs to one experiment and comes first.
GROUPS = ("Input", "Projections", "Mask and position", "Variants", "Model", "Output", "Options")
NAME_WIDTH = 30
EVERYDAY_EXAMPLES, EXAMPLE_WIDTH = 3, 76
HELP_OPTIONS = {"help": "show this help and exit", "help_all": "show every flag"}


class CommandWithExamples(TyperCommand):
    """A command with two kinds of help: the everyday flags on one screen, or all the flags in groups."""

    examples: Sequence[str] = ()
    everyday: Mapping[str, str] = {}
    """Short descriptions of the flags in everyday help, by parameter name."""
    is_help_whole = False
    needs_torch = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Objects of the modules imported so far are exempt from garbage collection."""
        check_environment(needs_torch=self.needs_torch)
        gc.freeze()
        gc.enable()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. Raises UserError, with an explanation, if it is malformed."""
        typed, program = [*args], list[str]()
        if not ctx.allow_interspersed_args:
            from attncli.commands.mistakes import split_before_program

            typed, program = split_before_program(args, _flags(self))
        try:
            parsed = super().parse_args(ctx, [*typed, *program])
        except typer.TyperException as error:
            if not typed and not program:  # Typer prints the help
                raise
            from attncli.commands.mistakes import explain_parse_error

            line = explain_parse_error(
                error.format_message(),
                typed,
                command=ctx.info_name,
                flags=_flags(self),
                arguments=[parameter.metavar or "" for parameter in self.params if _is_argument(parameter)],
                flags_by_command=_flags_by_command,
            )
            raise UserError(line) from None
        flags = _flags(self)
        if any(
            flag in flags and (other in flags or other.lower() in TRUTHS) for flag, other in pairwise(typed)
        ):
            from attncli.commands.mistakes import check_values

            check_values(typed, flags)
        return parsed

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, like `[OPTIONS] FILE [REPORT]`."""
        pieces = ["[OPTIONS]"]
        for parameter in filter(_is_argument, self.params):
            name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
            pieces.append(f"{name}{'...' if parameter.nargs == -1 else ''}")
        return pieces

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the summary and the examples: all or, in everyday help, the first ones that fit on a line."""
        super().format_help_text(ctx, formatter)
        fitting = [line for line in self.examples if len(line) <= EXAMPLE_WIDTH][:EVERYDAY_EXAMPLES]
        formatter.write("\n  Examples:\n")
        for line in self.examples if self.is_help_whole else fitting:
            formatter.write(f"    {line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, followed by the everyday options or by all options in groups."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            flags, text = parameter.get_help_record(ctx) or ("", "")
            if _is_argument(parameter):
                sections.setdefault("Arguments", []).append((parameter.metavar or "", text))
            elif self.is_help_whole and not _is_hidden(parameter):
                group = getattr(parameter, "rich_help_panel", None) or "Options"
                sections.setdefault(group, []).append((flags, text))
            elif parameter.name in self.everyday:
                text = self.everyday[parameter.name]
                sections.setdefault("Options", []).append((_everyday_name(parameter, flags), text))
        names = [name for title in sections.keys() - {"Arguments"} for name, _ in sections[title]]
        width = min(max(map(len, names)), NAME_WIDTH)
        for title in sorted(sections, key=_place):
            (first, text), *rows = sections[title]
            # Padded, so that the descriptions begin in the same column in every group.
            padded = first if title == "Arguments" else first.ljust(width)
            with formatter.section(title):
                formatter.write_dl([(padded, text), *rows], col_max=NAME_WIDTH)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write how many more flags `--help-all` shows."""
        options = [
            parameter
            for parameter in self.get_params(ctx)
            if not (_is_argument(parameter) or _is_hidden(parameter))
        ]
        if not self.is_help_whole:
            hidden = sum(option.name not in self.everyday for option in options)
            formatter.write(f"\n--help-all shows {hidden} more flag{'s' * (hidden > 1)}.\n")


def _everyday_name(parameter: Any, flags: str) -> str:
    """Return the flags and the value in the form that everyday help shows.

    A switch is named by the flag that changes its default; a long list of choices becomes NAME.
    """
    if parameter.secondary_opts:
        is_on = parameter.help.endswith("[default: true]")
        return str((parameter.secondary_opts if is_on else parameter.opts)[0])
    return flags if len(flags) <= NAME_WIDTH else f"{', '.join(parameter.opts)} NAME"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _flags(command: Any) -> dict[str, str | None]:
    """Return the visible flags of a Typer command with their metavars, or None for switches."""
    options = (
        parameter for parameter in command.params if not _is_argument(parameter) and not parameter.hidden
    )
    return {
        flag: None if option.is_flag else option.metavar or "TEXT"
        for option in options
        for flag in (*option.opts, *option.secondary_opts)
    }


def _flags_by_command() -> dict[str, dict[str, str | None]]:
    """Import every command and return the flags of each."""
    usable = [name for name in COMMANDS if name not in EXPERIMENTS or name in SPECS]
    return {name: _flags(_command(name)) for name in usable}


def _is_hidden(parameter: Any) -> bool:
    return bool(parameter.hidden)


def _place(title: str) -> tuple[bool, int]:
    return title != "Arguments", GROUPS.index(title) if title in GROUPS else -1


def _name(parameter: "Parameter") -> str:
    """Return the parameter's name in a signature, such as `from_` for --from, because `from` is a keyword."""
    return f"{parameter.name}_" if iskeyword(parameter.name) else parameter.name


def _completer(parameter: "Parameter") -> Callable[[typer.Context, str], list[str]]:
    """Return the function that completes the parameter's value in a shell."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from attncli.commands.completion import completions

        row = COMMANDS.get(context.info_name or "")
        needs_model = row is not None and row.group == "Models"
        values = context.params | _arguments_before(context)
        return completions(parameter, values, incomplete, needs_model=needs_model)

    return complete


def _arguments_before(context: typer.Context) -> dict[str, str]:
    """Return the arguments that Typer leaves unparsed if the last flag on the line lacks its value."""
    names = [each.name for each in context.command.params if each.param_type_name == "argument"]
    return {name: word for name, word in zip(names, context.args, strict=False) if name is not None}


def _keyword(parameter: "Parameter") -> Keyword:
    """Return the parameter as Typer reads it from a function's signature."""
    if parameter.flags:
        typed: Any = typer.Option(
            *parameter.flags,
            help=parameter.help,
            metavar=parameter.metavar,
            min=parameter.min,
            autocompletion=_completer(parameter),
            rich_help_panel=parameter.group,
            hidden=parameter.hidden,
        )
    else:
        complete = (
            _completer(parameter) if parameter.choices else None
        )  # None means that the shell completes file names
        typed = typer.Argument(help=parameter.help, metavar=parameter.metavar, autocompletion=complete)
    kind, default = parameter.kind, parameter.default
    if _has_one_value(parameter):
        kind, default = GenericAlias(list, (kind,)), None if default is None else [default]
    return Keyword(
        _name(parameter),
        Keyword.KEYWORD_ONLY,
        default=Keyword.empty if parameter.required else default,
        annotation=Annotated[kind, typed],
    )


def _print_whole_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        vars(ctx.command)["is_help_whole"] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HELP_ALL = Keyword(
    "help_all",
    Keyword.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all", help="Show every flag and exit.", is_eager=True, callback=_print_whole_help
        ),
    ],
)


def _has_one_value(parameter: "Parameter") -> bool:
    """Return True for an option with one value, which Typer reads as a list to detect a second value."""
    return bool(parameter.flags) and parameter.kind not in (bool, list[str])


def _passed(parameter: "Parameter", value: Any) -> Any:
    """Return the value in the form that `run` takes. Raises UserError for two different values."""
    if parameter.kind == list[str]:
        return value or ()  # Typer passes None if the list is empty.
    if not _has_one_value(parameter):
        return value
    values = list(dict.fromkeys(value or ()))
    if len(values) > 1:
        listed = ", ".join(map(str, values))
        raise UserError(f"{'/'.join(parameter.flags)}: takes one value (got {listed})")
    return values[0] if values else None


def _typer_command(command: "Command") -> Any:
    """Build the Typer command, which prints its help if its required arguments are missing."""

    def call(help_all: bool, **values: Any) -> int | None:
        for parameter in command.parameters:
            value = values[_name(parameter)]
            if value not in (None, (), []):
                if parameter.refusal:
                    raise UserError(f"{parameter.flags[0].partition('/')[0]}: {parameter.refusal}")
                if parameter.now:
                    values[parameter.now] = [*(values[parameter.now] or ()), *value]
        passed = {
            parameter.name: parameter.with_resolved_files(_passed(parameter, values[_name(parameter)]))
            for parameter in command.parameters
            if parameter.is_passed
        }
        command.refuse_writing_over(passed)
        return command.run(**passed, **({"attn": run} if command.runs_commands else {}))

    vars(call)["__signature__"] = Signature([*map(_keyword, command.parameters), HELP_ALL])
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        command.name,
        cls=CommandWithExamples,
        help=f"{command.summary}.",
        no_args_is_help=any(parameter.required for parameter in command.parameters),
        context_settings={
            **HELP_NAMES,
            "allow_interspersed_args": not command.runs_program,
            "token_normalize_func": lambda name: name.replace("_", "-"),  # the same as --head-dim
        },
    )(call)
    made: Any = typer.main.get_command(app)
    made.examples, made.needs_torch = command.examples, command.needs_torch
    made.everyday = {
        _name(parameter): parameter.everyday
        for parameter in command.parameters
        if parameter.everyday and not parameter.hidden
    } | HELP_OPTIONS
    return made


def _command(name: str) -> Any:
    """Build the Typer command with that name."""
    row = COMMANDS[name]
    if name in EXPERIMENTS and name not in SPECS:  # the reason has been printed
        raise typer.Exit(FAILED)
    return _typer_command(load_place(row.place)(name, row.summary))


class LazyGroup(TyperGroup):
    """The commands, by name and summary. A command is imported only when it is called.

    An unknown name raises an error with a suggestion.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # for Typer's list and its suggestions

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; `version` and `help [COMMAND]` are read as the flags with these names.

        `attn --help-all` prints the same as `--help`, because flags are listed by command.
        """
        match args:
            case ["version"]:
                args = ["--version"]
            case ["help", *commands]:
                args = [*commands, "--help"]
            case ["--help-all", *words]:
                args = ["--help", *words]
        typed = [*args]
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            from attncli.commands.mistakes import flag_before_command

            line = flag_before_command(error.format_message(), typed, _flags(self), COMMANDS)
            raise UserError(line) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command. Raises UserError for an unknown name."""
        if args[0] not in self.commands:
            from attncli.commands.mistakes import unknown_command

            raise UserError(unknown_command(args, self.commands))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Build the command with that name, or return None if there is none."""
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names and summaries in their groups without importing any command."""
        width = max(map(len, COMMANDS))
        groups = dict.fromkeys((*COMMAND_GROUPS, *(row.group for row in COMMANDS.values())))
        for group in (group for group in groups if group != UNLISTED):
            with formatter.section(group):
                rows = [
                    (name.ljust(width), row.summary) for name, row in COMMANDS.items() if row.group == group
                ]
                formatter.write_dl(rows)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attn {__version__} (tile pass: {tile_pass_in_use()})")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        check_environment(needs_torch=True)
        from attncli.commands.first_look import show_first_look

        show_first_look()


def build_app() -> Any:
    """Build the Typer command for the whole of `attn`."""
    app = typer.Typer(
        cls=LazyGroup,
        invoke_without_command=True,
        rich_markup_mode=None,
        help=HELP,
        context_settings=HELP_NAMES,
    )
    app.callback()(_root)
    made: Any = typer.main.get_command(app)
    for parameter in made.params:  # keeps `attn --help` on one screen
        parameter.hidden |= parameter.name == "show_completion"
    return made


def _print_errors(*lines: str) -> None:
    for line in lines:
        print(plain_text(line), file=sys.stderr)


def run(arguments: Sequence[str]) -> int:
    """Run a single command line and return its exit code."""
    forget_notes()
    completes = os.environ.get("_ATTN_COMPLETE", "")
    try:
        if completes == "complete_bash":
            from attncli.commands.completion import whole_words_in_bash

            with whole_words_in_bash():
                build_app()(prog_name="attn")
        code = build_app()(args=list(arguments), prog_name="attn", standalone_mode=False)
        code = code if isinstance(code, int) else DONE
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # a closed pipe does not change the exit code
            discard_stdout()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        # Typer exits if the pipe closes while it is writing help.
        if isinstance(ended.__context__, BrokenPipeError):
            return DONE
        raise
    except Exception as error:  # every failure is reported on one line
        # A library may have replaced the exception that the signal handler raised.
        if _end_signals and not isinstance(error, UserError):
            return 128 + _end_signals[0]
        if "--debug" in arguments:
            traceback.print_exc()
        # During completion, the shell would insert the message into the command line.
        return FAILED if completes else _failed(error)


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _failed(error: Exception) -> int:
    match error:
        case BrokenPipeError() | ClosedPipe():
            discard_stdout()
            return DONE
        case UserError():
            from attncli.settings.fields import with_key_names

            _print_errors(*(with_key_names(line, flags=False) for line in first_lines(error.lines)))
            return error.exit_code
        case typer.TyperException():
            _print_errors(*error.format_message().splitlines())
            return error.exit_code
        case BrokenPlugin(__cause__=Exception() as cause) if is_about_memory(cause):
            _print_errors(out_of_memory(cause))
        case BrokenPlugin():
            _print_errors(str(error))
        case _ if is_about_memory(error):
            _print_errors(out_of_memory(error))
        case OSError() if error.filename is not None and error.errno not in NO_ROOM:
            # Writing handles its own errors; this one came from pathlib while it looked up a file.
            _print_errors(f"{error.filename}: cannot be read: {error.strerror}")
            return UserError.exit_code
        case OSError():
            _print_errors(f"cannot write: {error.strerror}")
            discard_stdout()
            return WriteError.exit_code
        case _ if (package := package_with_damaged_metadata(error)) is not None:
            damaged = f"{package}: its entry_points.txt is damaged"
            _print_errors(f"{damaged}, so torch cannot be imported: reinstall the package")
        case _:
            why = f"{type(error).__name__}: {error} (use --debug to see where"
            plugin = _plugin_that_raised(error)
            _print_errors(
                f"internal error: {why}; please report it)" if plugin is None else f"plugin {plugin}: {why})"
            )
    return FAILED


def _plugin_that_raised(error: Exception) -> Plugin | None:
    """Return the entry point of the plugin in the error's traceback, or None."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    callers = (plugin_of(frame.f_globals.get("__name__", "attncli")) for frame in frames)
    return next(filter(None, callers), None)


_end_signals: list[int] = []
"""The signals that asked this process to end, in order."""


def _stop(signal_number: int, frame: object) -> None:
    """Exit by raising an exception, so that unfinished files are removed on the way out."""
    _end_signals.append(signal_number)
    sys.exit(128 + signal_number)


def _interrupt(signal_number: int, frame: object) -> None:
    """Handle Ctrl-C like `_stop`, except that commands can catch it to finish with partial results."""
    _end_signals.append(signal_number)
    raise KeyboardInterrupt


def _signal_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Send the signal again, because Python drops exceptions raised in weakref callbacks and `__del__`."""
    match unraisable.exc_value:
        case SystemExit():
            number = signal.SIGTERM
        case KeyboardInterrupt():
            number = signal.SIGINT
        case _:
            sys.__unraisablehook__(unraisable)
            return
    main_thread = threading.main_thread().ident or 0
    threading.Timer(0.05, signal.pthread_kill, [main_thread, number]).start()


def main() -> None:
    """Run the command line of this process. `invoke` turns garbage collection back on."""
    try:
        code: str | int | None = _run_process()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as ended:
        code = ended.code
    end_quietly()  # an exception raised by a signal during exit would be printed
    sys.exit(code)


def _run_process() -> int:
    gc.disable()
    for number in ENDING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # nohup or background
            signal.signal(number, _interrupt if number == signal.SIGINT else _stop)
    sys.unraisablehook = _signal_again
    os.register_at_fork(after_in_child=end_as_by_default)
    for descriptor in range(3):  # otherwise, a closed descriptor would be reused for a file
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:  # the caller closed it, so messages are dropped
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    if sys.stdout is None:
        _print_errors("cannot write: standard output is closed")
        return WriteError.exit_code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=LEGIBLE)
    return run(sys.argv[1:])
