"""`attn export`: the tidy table of a store as a file."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncli.cli.command import Command, argument, flag, option
from attncli.cli.flags import DEBUG, OUTPUT
from attncli.cli.output import checked_path, chosen_format, written_stream
from attncli.errors import UserError
from attncli.plain_text import plain_text

if TYPE_CHECKING:
    from attncli.batch.store.reading import Reader

EXAMPLES = (
    "attn export runs.db -o tidy.parquet",
    "attn export runs.db -o tidy.csv",
    "attn export runs.db --format jsonl | head",
)
FORMATS = ("csv", "jsonl", "parquet")
STORE = argument("store", "What `attn batch -o` kept.", "STORE")
FORMAT = option("--format", "How to write it. [default: by the suffix of -o, else csv]", "|".join(FORMATS))
ALL_RUNS = flag("--all", "Include runs of earlier plans; the column plan tells them apart.")


def export_store(store: str, output: str | None, format: str | None, all: bool) -> None:
    """One row per statistic of a run: run, id, layer, head, statistic, value."""
    from attncli.views.data.writers import SUFFIXES, WRITERS

    path = checked_path(output)
    chosen = chosen_format(format, path, FORMATS, SUFFIXES, "csv")
    if chosen == "parquet" and path is None:
        raise UserError("--format parquet: needs -o FILE")
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise UserError('--format parquet: needs: pip install "attncli[parquet]"')
    from attncli.batch.store.reading import reading
    from attncli.batch.store.tidy import tidy_blocks, tidy_columns

    with reading(Path(store), all_runs=all) as reader:
        columns, blocks = tidy_columns(reader), tidy_blocks(reader)
        with written_stream(path, is_binary=chosen == "parquet") as stream:
            WRITERS[chosen](columns, blocks, stream)
        note_earlier_runs(store, reader)


def note_earlier_runs(store: str, reader: "Reader") -> None:
    """Print on standard error that the last batch did not plan all runs, where it is so."""
    if earlier := reader.earlier_runs():
        typer.echo(plain_text(f"{store}: {earlier}"), err=True)


command = partial(
    Command, run=export_store, parameters=[STORE, OUTPUT, FORMAT, ALL_RUNS, DEBUG], examples=EXAMPLES
)
