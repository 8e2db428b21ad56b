"""`attn show`: what was computed before, by attn or by somebody else, in any view."""

from pathlib import Path
from typing import Annotated, Any

import typer

from attncli.cli.output import Color, Debug, Destination, Format, Output, Precision, ScaleColors, SkipSink
from attncli.errors import UserError
from attncli.experiments.memory import available_bytes
from attncli.saved.arrays import is_array_file, read_array
from attncli.saved.content import STDIN
from attncli.saved.reports import SavedReports, read_reports
from attncli.saved.tokens import read_tokens
from attncli.saved.weights import checked_weights

EXAMPLES = """
  attn self --sentence "the cat sleeps" -o cat.json
  attn show cat.json
  attn show cat.json -o cat.csv
  attn show lessons.jsonl --report 3
  attn show weights.npz --array attention --tokens tokens.txt
  attn heads --format json | attn show -"""

File = Annotated[
    str,
    typer.Argument(
        help="A saved report (.json, .jsonl; - reads stdin), or an array (.npz, .npy, .safetensors): "
        "query × key, head × query × key, or layer × head × query × key.",
        metavar="FILE",
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", help="An array's tokens: a line each, or a JSON list.", metavar="FILE"),
]
ContextTokens = Annotated[
    str | None,
    typer.Option("--context-tokens", help="Those of its keys, where they are others.", metavar="FILE"),
]
ArrayName = Annotated[
    str | None, typer.Option("--array", help="The array, where a file has several.", metavar="NAME")
]
ReportNumber = Annotated[
    str | None,
    typer.Option("--report", help="The report, where a file has several; from 0.", metavar="INTEGER"),
]


def opened(
    file: str, tokens: str | None = None, context_tokens: str | None = None, array: str | None = None
) -> SavedReports:
    """The reports of a file; of an array one, for which torch is imported once all else is in order."""
    flags = {"--tokens": tokens, "--context-tokens": context_tokens, "--array": array}
    most_bytes = available_bytes()
    if file == STDIN or not is_array_file(file):
        for flag, value in flags.items():
            if value is not None:
                raise UserError(f"{flag}: is for arrays (.npz, .npy, .safetensors), and {file} is none")
        return read_reports(file, most_bytes=most_bytes)
    if tokens == context_tokens == STDIN:
        raise UserError("--context-tokens: cannot read stdin, too: --tokens does already")
    named_tokens, named_context = (
        None if name is None else read_tokens(name) for name in (tokens, context_tokens)
    )
    numbers = read_array(file, name=array, most_bytes=most_bytes)
    weights = checked_weights(numbers, file, named_tokens, named_context, most_bytes=most_bytes)
    from attncli.experiments.given_weights import weights_report

    source = {"file": Path(file).name, "array": array}
    return SavedReports(
        (weights_report(weights, source, named_tokens or (), named_context or ()),), several=False
    )


def _one(saved: SavedReports, file: str, number: str) -> SavedReports:
    count = len(saved.reports)
    if not number.isdecimal() or int(number) >= count:
        raise UserError(f"--report: must be below {count}, the number of reports in {file} (got {number})")
    return SavedReports((saved.reports[int(number)],), several=False)


def show(
    file: File,
    tokens: Tokens = None,
    context_tokens: ContextTokens = None,
    array: ArrayName = None,
    report: ReportNumber = None,
    format: Format = None,
    output: Output = None,
    precision: Precision = "4",
    color: Color = "auto",
    scale_colors: ScaleColors = "linear",
    skip_sink: SkipSink = None,
    debug: Debug = False,
) -> int:
    """Read everything, so that nothing is written of a damaged file; then show it."""
    to = Destination(
        format, output, precision, color, several=False, scale_colors=scale_colors, skip_sink=skip_sink
    )
    saved = opened(file, tokens, context_tokens, array)
    if report is not None:
        saved = _one(saved, file, report)
    to.write(saved.reports, several=saved.several)
    return 0


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(show)
    return typer.main.get_command(app)
