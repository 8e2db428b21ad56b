"""The command line, the only file that knows Typer: every command by its name, and every way to end."""

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
    check_place,
    first_lines,
    forget_stdout,
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

HELP = """Where each token looks: in a sentence, in heads of models, in many runs.

attn alone shows a trained head; attn COMMAND --help-all shows every flag;
attn info has versions, plugins and schemas.
"""


class CommandRow(NamedTuple):
    """A row of the help, below its group; the place of the function that makes it: `place(name, summary)`."""

    summary: str
    place: str
    group: str


UNLISTED = "About attn"
"""The group of what answers no question: the words above name it."""
OF_SPEC = "attncli.commands.experiment:command"
COMMANDS = {
    **{
        name: CommandRow(question.summary, question.command or OF_SPEC, question.group)
        for name, question in QUESTIONS.items()
    },
    "info": CommandRow(
        "Versions, plugins, schemas, and papers to cite", "attncli.commands.info:command", UNLISTED
    ),
}
COMMAND_GROUPS = ("See", "Learn", "Models", "Many runs")
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
# The headings of long help in order. Any other heading belongs to one experiment and comes first.
GROUPS = ("Input", "Projections", "Mask and position", "Variants", "Model", "Output", "Options")
NAME_WIDTH = 30
EVERYDAY_EXAMPLES, EXAMPLE_WIDTH = 3, 76
OF_HELP = {"help": "show this and exit", "help_all": "show every flag"}


class CommandWithExamples(TyperCommand):
    """A command with two kinds of help: of everyday flags on one screen, and of all flags in groups."""

    examples: Sequence[str] = ()
    everyday: Mapping[str, str] = {}
    """What everyday help says of a flag, by the name of its parameter."""
    is_help_whole = False
    needs_torch = False

    def invoke(self, ctx: Any) -> Any:
        """Run it; what was imported until now lives as long as the process, and is not collected."""
        check_place(needs_torch=self.needs_torch)
        gc.freeze()
        gc.enable()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's; a mistake in the form of the line is explained."""
        typed, program = [*args], list[str]()
        if not ctx.allow_interspersed_args:
            from attncli.commands.mistakes import split_before_program

            typed, program = split_before_program(args, _flags(self))
        try:
            parsed = super().parse_args(ctx, [*typed, *program])
        except typer.TyperException as error:
            if not typed and not program:  # it shows the help
                raise
            from attncli.commands.mistakes import explained

            line = explained(
                error.format_message(),
                typed,
                command=ctx.info_name,
                flags=_flags(self),
                arguments=[parameter.metavar or "" for parameter in self.params if _is_argument(parameter)],
                flags_of=_flags_of_each,
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
        """`[OPTIONS] FILE [REPORT]`: arguments by their names alone."""
        pieces = ["[OPTIONS]"]
        for parameter in filter(_is_argument, self.params):
            name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
            pieces.append(f"{name}{'...' if parameter.nargs == -1 else ''}")
        return pieces

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """The summary and examples: all, or in everyday help the first that fit into a line."""
        super().format_help_text(ctx, formatter)
        fitting = [line for line in self.examples if len(line) <= EXAMPLE_WIDTH][:EVERYDAY_EXAMPLES]
        formatter.write("\n  Examples:\n")
        for line in self.examples if self.is_help_whole else fitting:
            formatter.write(f"    {line}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The arguments; then the everyday options, or all of them in groups."""
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
            (first, text), *others = sections[title]
            # Padded, so that descriptions begin in the same column in every group.
            padded = first if title == "Arguments" else first.ljust(width)
            with formatter.section(title):
                formatter.write_dl([(padded, text), *others], col_max=NAME_WIDTH)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Where the other flags are."""
        options = [
            parameter
            for parameter in self.get_params(ctx)
            if not (_is_argument(parameter) or _is_hidden(parameter))
        ]
        if not self.is_help_whole:
            others = sum(option.name not in self.everyday for option in options)
            formatter.write(f"\n--help-all shows {others} more flag{'s' * (others > 1)}.\n")


def _everyday_name(parameter: Any, flags: str) -> str:
    """Its flags and value; of a switch the flag that changes its default, of a long list of values NAME."""
    if parameter.secondary_opts:
        is_on = parameter.help.endswith("[default: true]")
        return str((parameter.secondary_opts if is_on else parameter.opts)[0])
    return flags if len(flags) <= NAME_WIDTH else f"{', '.join(parameter.opts)} NAME"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _flags(command: Any) -> dict[str, str | None]:
    """The flags in the help of Typer's command, each with what it calls its value; None for a switch."""
    options = (
        parameter for parameter in command.params if not _is_argument(parameter) and not parameter.hidden
    )
    return {
        flag: None if option.is_flag else option.metavar or "TEXT"
        for option in options
        for flag in (*option.opts, *option.secondary_opts)
    }


def _flags_of_each() -> dict[str, dict[str, str | None]]:
    """The flags of every command, whose pages are all imported now."""
    usable = [name for name in COMMANDS if name not in EXPERIMENTS or name in SPECS]
    return {name: _flags(_command(name)) for name in usable}


def _is_hidden(parameter: Any) -> bool:
    return bool(parameter.hidden)


def _place(title: str) -> tuple[bool, int]:
    return title != "Arguments", GROUPS.index(title) if title in GROUPS else -1


def _name(parameter: "Parameter") -> str:
    """Its name in a signature: `from_` for --from, a word of Python."""
    return f"{parameter.name}_" if iskeyword(parameter.name) else parameter.name


def _completed(parameter: "Parameter") -> Callable[[typer.Context, str], list[str]]:
    """What a shell completes of its value."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from attncli.commands.completion import completions

        row = COMMANDS.get(context.info_name or "")
        of_model = row is not None and row.group == "Models"
        given = context.params | _arguments_before(context)
        return completions(parameter, given, incomplete, of_model=of_model)

    return complete


def _arguments_before(context: typer.Context) -> dict[str, str]:
    """The arguments on a line whose last flag has no value yet, where they are left unread."""
    names = [each.name for each in context.command.params if each.param_type_name == "argument"]
    return {name: word for name, word in zip(names, context.args, strict=False) if name is not None}


def _keyword(parameter: "Parameter") -> Keyword:
    """The parameter in the signature of a function, as Typer reads it."""
    if parameter.flags:
        typed: Any = typer.Option(
            *parameter.flags,
            help=parameter.help,
            metavar=parameter.metavar,
            min=parameter.min,
            autocompletion=_completed(parameter),
            rich_help_panel=parameter.group,
            hidden=parameter.hidden,
        )
    else:
        complete = _completed(parameter) if parameter.choices else None  # else the shell's names of files
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
    """Whether it is an option that takes one value; Typer reads it as a list, to see a second."""
    return bool(parameter.flags) and parameter.kind not in (bool, list[str])


def _passed(parameter: "Parameter", value: Any) -> Any:
    """The value as `run` takes it. Raises UserError where an option was given two that differ."""
    if parameter.kind == list[str]:
        return value or ()  # Of a list that was not given Typer makes None.
    if not _has_one_value(parameter):
        return value
    values = list(dict.fromkeys(value or ()))
    if len(values) > 1:
        said = ", ".join(map(str, values))
        raise UserError(f"{'/'.join(parameter.flags)}: takes one value (got {said}): give one")
    return values[0] if values else None


def _typer_command(command: "Command") -> Any:
    """Typer's command; called without its required arguments it shows its help."""

    def call(help_all: bool, **values: Any) -> int | None:
        for parameter in command.parameters:
            value = values[_name(parameter)]
            if value not in (None, (), []):
                if parameter.refusal:
                    raise UserError(f"{parameter.flags[0].partition('/')[0]}: {parameter.refusal}")
                if parameter.now:
                    values[parameter.now] = [*(values[parameter.now] or ()), *value]
        passed = {
            parameter.name: parameter.found(_passed(parameter, values[_name(parameter)]))
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
            "token_normalize_func": lambda name: name.replace("_", "-"),  # --head_dim is --head-dim
        },
    )(call)
    made: Any = typer.main.get_command(app)
    made.examples, made.needs_torch = command.examples, command.needs_torch
    made.everyday = {
        _name(parameter): parameter.everyday
        for parameter in command.parameters
        if parameter.everyday and not parameter.hidden
    } | OF_HELP
    return made


def _command(name: str) -> Any:
    """Typer's command of that name, built now."""
    row = COMMANDS[name]
    if name in EXPERIMENTS and name not in SPECS:  # it has been said why
        raise typer.Exit(FAILED)
    return _typer_command(load_place(row.place)(name, row.summary))


class LazyGroup(TyperGroup):
    """All commands by their names and summaries, each imported when it is called.

    A word that is no command is answered with what would work instead.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # Typer lists and suggests them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Typer's, with `version` and `help [COMMAND]` for the flags of these names.

        Every flag is shown by command, so that `--help-all` is help here.
        """
        match args:
            case ["version"]:
                args = ["--version"]
            case ["help", *commands]:
                args = [*commands, "--help"]
            case ["--help-all", *others]:
                args = ["--help", *others]
        typed = [*args]
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            from attncli.commands.mistakes import flag_before_command

            line = flag_before_command(error.format_message(), typed, _flags(self), COMMANDS)
            raise UserError(line) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Typer's. Raises UserError for a word that is no command."""
        if args[0] not in self.commands:
            from attncli.commands.mistakes import unknown_command

            raise UserError(unknown_command(args, self.commands))
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, built now, or None."""
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names and summaries in their groups, with nothing imported."""
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
        check_place(needs_torch=True)
        from attncli.commands.first_look import show_first_look

        show_first_look()


def build_app() -> Any:
    """The Typer command for the whole of `attn`."""
    app = typer.Typer(
        cls=LazyGroup,
        invoke_without_command=True,
        rich_markup_mode=None,
        help=HELP,
        context_settings=HELP_NAMES,
    )
    app.callback()(_root)
    made: Any = typer.main.get_command(app)
    for parameter in made.params:  # the first help is one screen
        parameter.hidden |= parameter.name == "show_completion"
    return made


def _print_errors(*lines: str) -> None:
    for line in lines:
        print(plain_text(line), file=sys.stderr)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
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
        except BrokenPipeError:  # a reader that has gone changes no verdict
            forget_stdout()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        # Typer's answer to a pipe that closed while it wrote help.
        if isinstance(ended.__context__, BrokenPipeError):
            return DONE
        raise
    except Exception as error:  # every failure is reported in one line; the last kind is a mistake of ours
        # A library may have made another error of what a signal raised.
        if _asked and not isinstance(error, UserError):
            return 128 + _asked[0]
        if "--debug" in arguments:
            traceback.print_exc()
        # A shell that completes a line would write a message into it.
        return FAILED if completes else _failed(error)


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _failed(error: Exception) -> int:
    match error:
        case BrokenPipeError() | ClosedPipe():
            forget_stdout()
            return DONE
        case UserError():
            from attncli.settings.fields import in_words_of

            _print_errors(*(in_words_of(line, flags=False) for line in first_lines(error.lines)))
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
            # Errors in writing are handled there: this one comes from looking up a name, through pathlib.
            _print_errors(f"{error.filename}: cannot be read: {error.strerror}")
            return UserError.exit_code
        case OSError():
            _print_errors(f"cannot write: {error.strerror}")
            forget_stdout()
            return WriteError.exit_code
        case _ if (package := package_with_damaged_metadata(error)) is not None:
            damaged = f"{package}: its entry_points.txt is damaged"
            _print_errors(f"{damaged}, and torch, which reads those of all packages, ends: reinstall it")
        case _:
            why = f"{type(error).__name__}: {error} (--debug shows where"
            plugin = _plugin_that_raised(error)
            _print_errors(
                f"internal error: {why}; please report it)" if plugin is None else f"plugin {plugin}: {why})"
            )
    return FAILED


def _plugin_that_raised(error: Exception) -> Plugin | None:
    """The entry point of another package whose code raised an error, or called what raised it; else None."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    callers = (plugin_of(frame.f_globals.get("__name__", "attncli")) for frame in frames)
    return next(filter(None, callers), None)


_asked: list[int] = []
"""The signals that asked this process to end."""


def _stop(signal_number: int, frame: object) -> None:
    """Ask for the end: unfinished files are removed on the way out."""
    _asked.append(signal_number)
    sys.exit(128 + signal_number)


def _interrupt(signal_number: int, frame: object) -> None:
    """Ctrl-C: as `_stop`, for commands that finish with the results they have."""
    _asked.append(signal_number)
    raise KeyboardInterrupt


def _ask_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops exceptions raised in weakref callbacks and __del__: end the process all the same."""
    match unraisable.exc_value:
        case SystemExit():
            asked = signal.SIGTERM
        case KeyboardInterrupt():
            asked = signal.SIGINT
        case _:
            sys.__unraisablehook__(unraisable)
            return
    main_thread = threading.main_thread().ident or 0
    threading.Timer(0.05, signal.pthread_kill, [main_thread, asked]).start()


def main() -> None:
    """The command line of this process. Garbage collection is off until a command runs: see `invoke`."""
    try:
        code: str | int | None = _run_process()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as ended:
        code = ended.code
    end_quietly()  # while Python ends, what a signal raises would be printed
    sys.exit(code)


def _run_process() -> int:
    gc.disable()
    for number in ENDING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # nohup, background
            signal.signal(number, _interrupt if number == signal.SIGINT else _stop)
    sys.unraisablehook = _ask_again
    os.register_at_fork(after_in_child=end_as_by_default)
    for descriptor in range(3):  # in the place of one that is closed no file of ours is opened
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:  # closed by the caller, who wants to hear of nothing: what is said is lost
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    if sys.stdout is None:
        _print_errors("cannot write: standard output is closed")
        return WriteError.exit_code
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=LEGIBLE)
    return run(sys.argv[1:])
