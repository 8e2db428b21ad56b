"""`attn export`: the tidy table of a store as a file."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncli.cli.output import Debug, Destination, write_bytes
from attncli.errors import UserError, nearest
from attncli.views.plain_text import plain_text

if TYPE_CHECKING:
    from attncli.batch.reading import Reader

EXAMPLES = """
  attn export runs.db -o tidy.parquet
  attn export runs.db -o tidy.csv
  attn export runs.db --format jsonl | head"""

FORMATS = ("csv", "jsonl", "parquet")

StoreFile = Annotated[str, typer.Argument(help="What `attn batch -o` kept.", metavar="STORE")]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="Write to a file, whole or not at all.", metavar="FILE")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="How to write it. [default: by the suffix of -o, else csv]",
        metavar="|".join(FORMATS),
    ),
]
AllRuns = Annotated[
    bool,
    typer.Option("--all", help="Include runs of earlier plans, with the last plan that names each as plan."),
]


def _format(view: str | None, path: Path | None) -> str:
    from attncli.views.tidy import SUFFIXES

    if view is not None and view not in FORMATS:
        raise UserError(f"--format: must be one of {', '.join(FORMATS)} (got {view}){nearest(view, FORMATS)}")
    if path is None:
        if view == "parquet":
            raise UserError("--format parquet: needs -o FILE")
        return view or "csv"
    chosen = view or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise UserError(f"-o {path}: the suffix must be one of {', '.join(SUFFIXES)}, or give --format")
    return chosen


def export_store(
    store: StoreFile,
    output: Output = None,
    format: Format = None,
    all_runs: AllRuns = False,
    debug: Debug = False,
) -> None:
    """A row a figure: run, id, layer, head, statistic, value."""
    if output == "":
        raise UserError("-o: must be the name of a file (got an empty text)")
    path = Path(output) if output is not None else None
    chosen = _format(format, path)
    if path is not None:
        Destination.refuse_what_is_no_file(path)
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise UserError('--format parquet: needs: pip install "attncli[parquet]"')
    from attncli.batch.reading import reading
    from attncli.batch.tidy import tidy_blocks, tidy_columns
    from attncli.views.tidy import WRITERS

    with reading(Path(store), all_runs=all_runs) as reader:
        columns, blocks, write = tidy_columns(reader), tidy_blocks(reader), WRITERS[chosen]
        write_bytes(path, lambda stream: write(columns, blocks, stream))
        tell_of_earlier_runs(store, reader)


def tell_of_earlier_runs(store: str, reader: "Reader") -> None:
    """Say on standard error that the last batch did not plan all runs, where it is so."""
    if earlier := reader.earlier_runs():
        typer.echo(plain_text(f"{store}: {earlier}"), err=True)


def build(name: str, summary: str) -> Any:
    """The Typer command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name, help=f"{summary}.\n\n\b\nExamples:{EXAMPLES}\n", no_args_is_help=True)(export_store)
    return typer.main.get_command(app)
