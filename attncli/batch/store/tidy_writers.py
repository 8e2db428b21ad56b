"""Tables of plain columns, block by block, to files: CSV, JSON Lines and Parquet, at full precision."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from attncli.plain_text import plain_text

# The writer's own names of types: integer, text, number.
ColumnTypes = Mapping[str, str]
Blocks = Iterable[Mapping[str, list[Any]]]

PARQUET_TYPES = {"integer": "int64", "text": "string", "number": "float64"}


def write_csv(columns: ColumnTypes, blocks: Blocks, stream: IO[bytes]) -> None:
    """A header, then one line per row; a cell is empty where there is no value.

    Texts are written as they are, in quotes where they need them, so that equal cells are equal texts; a
    terminal gets them with every character visible.
    """
    show = plain_text if stream.isatty() else str
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
    try:
        writer = csv.writer(text, lineterminator="\n")
        # A carriage return gets no quotes by itself, and would end the line for whoever reads it.
        of_returns = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(columns)
        for block in blocks:
            texts = {name: _shown(block[name], show) for name, kind in columns.items() if kind == "text"}
            has_returns = any("\r" in cell for cells in texts.values() for cell in cells if cell)
            rows = zip(*(texts.get(name, block[name]) for name in columns), strict=True)
            (of_returns if has_returns else writer).writerows(rows)
    finally:
        text.detach()


def _shown(cells: list[Any], show: Callable[[str], str]) -> list[str | None]:
    return [None if c is None else show(str(c).lower() if isinstance(c, bool) else str(c)) for c in cells]


def write_jsonl(columns: ColumnTypes, blocks: Blocks, stream: IO[bytes]) -> None:
    """An object a row; what is not ASCII is escaped."""
    for block in blocks:
        rows = zip(*(block[name] for name in columns), strict=True)
        lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        stream.write("".join(lines).encode())


def write_parquet(columns: ColumnTypes, blocks: Blocks, stream: IO[bytes]) -> None:
    """A row group a block, so that no more than a block is in memory; names of statistics as a dictionary."""
    import pyarrow
    from pyarrow import parquet

    types = {name: getattr(pyarrow, PARQUET_TYPES[kind])() for name, kind in columns.items()}
    schema = pyarrow.schema(list(types.items()))
    with parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for block in blocks:
            arrays = [pyarrow.array(block[name], kind) for name, kind in types.items()]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


WRITERS: dict[str, Callable[[ColumnTypes, Blocks, IO[bytes]], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
