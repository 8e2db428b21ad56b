"""Tables of plain columns, block by block, to a stream: CSV, JSON Lines and Parquet, at full precision."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any

from attncli.plain_text import plain_text

ColumnTypes = Mapping[str, str]
Block = Mapping[str, list[Any]]
Blocks = Iterable[Block]

ENDS = re.compile('[,"\r\n]')
# The names of types, and what pyarrow calls them.
TYPES = {"integer": "int64", "number": "float64", "boolean": "bool_", "text": "string"}


def write_csv(columns: ColumnTypes, blocks: Blocks, stream: IO[str]) -> None:
    """A header, then one line per row; a cell is empty where there is no value.

    Texts are written as they are, in quotes where they need them, so that equal cells are equal texts; a
    terminal gets them with every character visible.
    """
    show = plain_text if stream.isatty() else str
    stream.write(",".join(_quoted(name) for name in columns) + "\n")
    for block in blocks:
        cells = [_cells(block[name], kind, show) for name, kind in columns.items()]
        stream.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def _cells(cells: list[Any], kind: str, show: Callable[[str], str]) -> list[str]:
    match kind:
        case "text":
            texts = {cell: _quoted(show(_text(cell))) for cell in set(cells) - {None}} | {None: ""}
            return [texts[cell] for cell in cells]
        case "boolean":
            return ["" if cell is None else _text(cell) for cell in cells]
    return ["" if cell is None else repr(cell) for cell in cells]


def _text(cell: Any) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _quoted(text: str) -> str:
    """The text as one cell (RFC 4180): in quotes where it would end the cell or the line, or is empty."""
    return '"' + text.replace('"', '""') + '"' if not text or ENDS.search(text) else text


def write_jsonl(columns: ColumnTypes, blocks: Blocks, stream: IO[str]) -> None:
    """An object a row; what is not ASCII is escaped."""
    for block in blocks:
        rows = zip(*(block[name] for name in columns), strict=True)
        lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        stream.writelines(lines)


def write_parquet(columns: ColumnTypes, blocks: Blocks, stream: IO[bytes]) -> None:
    """A row group a block, so that no more than a block is in memory; repeated texts as a dictionary."""
    import pyarrow
    from pyarrow import parquet

    types = {name: getattr(pyarrow, TYPES[kind])() for name, kind in columns.items()}
    schema = pyarrow.schema(list(types.items()))
    with parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for block in blocks:
            arrays = [pyarrow.array(block[name], kind) for name, kind in types.items()]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


WRITERS: dict[str, Callable[[ColumnTypes, Blocks, IO[Any]], None]] = {
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
