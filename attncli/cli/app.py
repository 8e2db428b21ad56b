"""The commands of `attn`, each imported when it is called, so that help and completion are quick."""

from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from attncli import __version__

HELP = """See attention at work: query, key, value, scores, weights and output, as tables and data.

\b
Examples:
  attn self --sentence "the cat walks on the street"
  attn scale-demo --head-dim 16 --head-dim 64
  attn multihead --num-heads 4 --causal --format json
  attn batch configs/lessons/causal.yaml
"""


class Command(NamedTuple):
    """A row of the help, and the module of this room whose `build` makes the command."""

    summary: str
    module: str


COMMANDS = {
    "average": Command("Average each token with its past, in three ways", "experiment"),
    "self": Command("Self-attention of one sentence, with one head", "experiment"),
    "multihead": Command("Multi-head attention of one sentence", "experiment"),
    "cross": Command("Cross-attention from a sentence to a context", "experiment"),
    "scale-demo": Command("Why scores are scaled: variance and sharpness", "experiment"),
    "norm": Command("Batch, layer and RMS normalisation", "experiment"),
    "heads": Command("What each head of a pretrained model does", "experiment"),
    "pitfalls": Command("Classic mistakes, each beside what is right", "experiment"),
    "show": Command("A saved report, or attention weights of others, in any view", "show"),
    "browse": Command("Look through heads and tokens in the terminal", "browse"),
    "diff": Command("Two experiments or saved reports side by side", "diff"),
    "batch": Command("Run the experiments of config files", "batch"),
    "results": Command("A summary of what a batch has kept", "results"),
    "export": Command("The figures of a batch as a tidy table", "export"),
    "config": Command("The schema of config files", "config"),
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
        command = COMMANDS[cmd_name]
        build: Callable[[str, str], Any] = import_module(f"attncli.cli.{command.module}").build
        return build(cmd_name, command.summary)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names and summaries, with nothing imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attn {__version__}")
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
    app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, help=HELP)
    app.callback()(_root)
    return typer.main.get_command(app)
