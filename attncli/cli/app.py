"""The commands of `attn`, each imported when it is called, so that help and completion are quick."""

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from attncli import __version__
from attncli.cli.command import HELP_NAMES
from attncli.compiled import tile_pass_in_use
from attncli.spec import EXPERIMENTS

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
    "heads": CommandRow(EXPERIMENTS["heads"].summary, "heads"),
    "lesson": CommandRow("Short lessons, which run in the terminal", "lessons.lesson"),
    "show": CommandRow("A saved report, or weights from another tool, in any view", "show"),
    "browse": CommandRow("Look through heads and tokens in the terminal", "browse"),
    "diff": CommandRow("Two experiments or saved reports side by side", "diff"),
    "batch": CommandRow("Run the experiments of config files", "batches.batch"),
    "results": CommandRow("A summary of what a batch has kept", "batches.results"),
    "export": CommandRow("The statistics of a batch as a tidy table", "batches.export"),
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
        return import_module(f"attncli.cli.{row.module}").command(cmd_name, row.summary)

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
