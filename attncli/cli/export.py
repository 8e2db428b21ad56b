"""`attn export`: the tidy table of a store as a file."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from attncli.cli.command import Command, argument, option
from attncli.cli.display import DEBUG, OUTPUT, refuse_unknown
from attncli.cli.output import refuse_what_is_no_file, written_stream
from attncli.errors import UserError

EXAMPLES = (
    "attn export runs.db -o tidy.parquet",
    "attn export runs.db -o tidy.csv",
    "attn export runs.db --format jsonl | head",
)
FORMATS = ("csv", "jsonl", "parquet")
STORE = argument("store", "What `attn batch -o` kept.", "STORE")
FORMAT = option("--format", "How to write it. [default: by the suffix of -o, else csv]", "|".join(FORMATS))


def _format(view: str | None, path: Path | None) -> str:
    from attncli.batch.tidy_writers import SUFFIXES

    if view is not None:
        refuse_unknown("--format", view, FORMATS)
    if path is None:
        if view == "parquet":
            raise UserError("--format parquet: needs -o FILE")
        return view or "csv"
    chosen = view or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise UserError(f"-o {path}: the suffix must be one of {', '.join(SUFFIXES)}, or give --format")
    return chosen


def export_store(store: str, output: str | None, format: str | None) -> None:
    """One row per statistic of a run: run, id, layer, head, statistic, value."""
    if output == "":
        raise UserError("-o: must be the name of a file (got an empty text)")
    path = Path(output) if output is not None else None
    chosen = _format(format, path)
    if path is not None:
        refuse_what_is_no_file(path)
    if chosen == "parquet" and find_spec("pyarrow") is None:
        raise UserError('--format parquet: needs: pip install "attncli[parquet]"')
    from attncli.batch.reading import reading
    from attncli.batch.tidy import tidy_blocks, tidy_columns
    from attncli.batch.tidy_writers import WRITERS

    with reading(Path(store)) as reader:
        columns, blocks = tidy_columns(reader), tidy_blocks(reader)
        with written_stream(path, is_binary=True) as stream:
            WRITERS[chosen](columns, blocks, stream)


command = partial(
    Command,
    run=export_store,
    parameters=[STORE, OUTPUT, FORMAT, DEBUG],
    examples=EXAMPLES,
)
