"""The command line: every command by its name, and every way to end, each with its exit code."""

import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from attncli import __version__
from attncli.commands.command import DONE, FAILED, HELP_NAMES, INTERRUPTED
from attncli.commands.output import ClosedPipe
from attncli.core.compiled import tile_pass_in_use
from attncli.errors import UserError, WriteError
from attncli.plain_text import plain_text
from attncli.settings import EXPERIMENTS, load

HELP = """See attention at work: query, key, value, scores, weights and output, as tables and data.

\b
Examples:
  attn self "the cat walks on the street"
  attn scale-demo --head-dim 16 --head-dim 64
  attn multihead --num-heads 4 --causal --format json
  attn heads --model ./my-model "the cat sat because it was tired"
"""


class CommandRow(NamedTuple):
    """A row of the help, and the module of this room whose `command(name, summary)` makes the command."""

    summary: str
    module: str


COMMANDS = {
    **{name: CommandRow(row.summary, "experiment") for name, row in EXPERIMENTS.items()},
    "heads": CommandRow(EXPERIMENTS["heads"].summary, "experiment:heads_command"),
    "lesson": CommandRow("Short lessons, which run in the terminal", "lesson"),
    "show": CommandRow("A saved report, or weights from another tool, in any view", "show"),
    "browse": CommandRow("Look through heads and tokens in the terminal", "browse"),
    "diff": CommandRow("Two experiments or saved reports side by side", "diff"),
    "batch": CommandRow("Run the experiments of config files", "batch"),
    "results": CommandRow("A summary of what a batch has kept", "results"),
    "export": CommandRow("The statistics of a batch as a tidy table", "results:export_command"),
    "config": CommandRow("The schema of config files", "config"),
}


class LazyGroup(TyperGroup):
    """A group that knows its commands' names and summaries, and imports a command when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(COMMANDS)
        self.commands = names  # Typer lists and suggests them

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, built now; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        row = COMMANDS[cmd_name]
        return load(f"attncli.commands.{row.module}", "command")(cmd_name, row.summary)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names and summaries, with nothing imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.summary) for name, row in COMMANDS.items()])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attn {__version__} (tile pass: {tile_pass_in_use()})")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    pass


def build_app() -> Any:
    """The Typer command for the whole of `attn`."""
    app = typer.Typer(
        cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, help=HELP, context_settings=HELP_NAMES
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def _print_errors(*lines: str) -> None:
    for line in lines:
        print(plain_text(line), file=sys.stderr)


def _forget_stdout() -> None:
    """Nobody reads on: what Python would still flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        code = build_app()(args=list(arguments), prog_name="attn", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        # Typer's answer to a pipe that closed while it wrote help.
        if isinstance(ended.__context__, BrokenPipeError):
            return DONE
        raise
    except Exception as error:  # every failure is reported in one line; the last kind is a mistake of ours
        if "--debug" in arguments:
            traceback.print_exc()
        return _failed(error)


def _failed(error: Exception) -> int:
    match error:
        case BrokenPipeError() | ClosedPipe():
            _forget_stdout()
            return DONE
        case UserError():
            _print_errors(*error.lines)
            return error.exit_code
        case typer.TyperException():
            _print_errors(*error.format_message().splitlines())
            return error.exit_code
        case OSError():
            _print_errors(f"cannot write: {error.strerror}")
            _forget_stdout()
            return WriteError.exit_code
        case MemoryError():
            _print_errors("out of memory: use fewer tokens or smaller sizes")
        case _:
            kind = type(error).__name__
            _print_errors(f"internal error: {kind}: {error} (--debug shows where; please report it)")
    return FAILED


def _stop(signal_number: int, frame: object) -> None:
    """Ask for the end: unfinished files are removed on the way out."""
    sys.exit(128 + signal_number)


def _ask_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised in a weakref callback or in __del__: so an end that was asked for."""
    match unraisable.exc_value:
        case SystemExit():
            asked = signal.SIGTERM
        case KeyboardInterrupt():
            asked = signal.SIGINT
        case _:
            sys.__unraisablehook__(unraisable)
            return
    main_thread = threading.main_thread().ident or 0
    threading.Timer(0.01, signal.pthread_kill, [main_thread, asked]).start()


def main() -> None:
    """`attn`, as installed. Garbage collection is off until a command runs: see Command.invoke."""
    gc.disable()
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = _ask_again
    # Closed by the caller: nobody would see an error, or a report.
    if sys.stderr is None:
        sys.exit(FAILED)
    if sys.stdout is None:
        _print_errors("cannot write: standard output is closed")
        sys.exit(WriteError.exit_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
