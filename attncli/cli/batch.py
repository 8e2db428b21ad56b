"""`attn batch`: the experiments of config files, one after the other."""

import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from attncli.batch.plan import Item, plan_files
from attncli.batch.serial import run_items
from attncli.cli.output import Color, Debug, Destination, Format, Output, Precision, ScaleColors, SkipSink
from attncli.errors import UserError
from attncli.views.plain_text import plain_text
from attncli.views.progress import progress_line

FINISHED_WITH_FAILURES = 3

EXAMPLES = """
  attn batch configs/lessons/causal.yaml
  attn batch configs/lessons/*.yaml --format jsonl -o lessons.jsonl"""

Files = Annotated[
    list[str], typer.Argument(help="Config files, each with one experiment or steps.", metavar="FILE...")
]


def run_files(
    files: Files,
    format: Format = None,
    output: Output = None,
    precision: Precision = "4",
    color: Color = "auto",
    scale_colors: ScaleColors = "linear",
    skip_sink: SkipSink = None,
    debug: Debug = False,
) -> int:
    """Validate every file, then run; what fails is told and the rest goes on."""
    to = Destination(
        format, output, precision, color, several=True, scale_colors=scale_colors, skip_sink=skip_sink
    )
    items = plan_files([Path(file) for file in files])
    failed = 0

    def fail(item: Item, error: UserError) -> None:
        nonlocal failed
        failed += 1
        if debug:
            traceback.print_exception(error)
        for line in error.lines:
            typer.echo(plain_text(f"{item.source}: {line}"), err=True)

    with progress_line() as progress:
        to.write(run_items(items, fail, progress))
    if failed:
        typer.echo(f"{failed} of {len(items)} experiments failed", err=True)
    return FINISHED_WITH_FAILURES if failed else 0


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(run_files)
    return typer.main.get_command(app)
