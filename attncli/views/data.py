"""Reports for other programs at full precision: whole reports as JSON or arrays, tables as CSV or Parquet."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import IO, Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from attncli.records.report import (
    AXES,
    PLACES,
    Cell,
    NamedTensor,
    Numbers,
    Report,
    Row,
    Table,
    Tensors,
    plain,
)
from attncli.settings import known_spec_class
from attncli.system.plain_text import UNSEEN, plain_text
from attncli.views import Display, NoSuchTable
from attncli.views.matrices import axis_tokens, places_along


def _dumps(data: Any) -> str:
    """Return JSON on one line, with control and invisible characters escaped."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _array(values: np.ndarray) -> Iterator[str]:
    """Yield an array's JSON row by row: lists of Python numbers take eight times the array's memory."""
    if values.ndim <= 1:
        yield _dumps(plain(values))
        return
    for i, part in enumerate(values):
        yield ", " if i else "["
        yield from _array(part)
    yield "]" if len(values) else "[]"


def pieces(value: Any) -> Iterator[str]:
    """Yield the JSON of mappings, lists and arrays piece by piece."""
    if isinstance(value, NamedTensor):
        yield from _array(value.values)
    elif isinstance(value, Mapping):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield f"{', ' if i else ''}{_dumps(name)}: "
            yield from pieces(item)
        yield "}"
    else:
        yield _dumps(plain(value))


def _document(report: Report) -> Iterator[str]:
    for i, (name, value) in enumerate(report.fields().items()):
        yield f"{',' if i else '{'}\n  {_dumps(name)}: "
        yield from pieces(value)
    yield "\n}"


def write_json(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write each key of a report on a separate line."""
    if not display.several:
        for report in reports:
            stream.writelines(_document(report))
            stream.write("\n")
        return
    separator = "[\n"
    for report in reports:
        stream.write(separator)
        stream.writelines(_document(report))
        separator = ",\n"
    stream.write("\n]\n" if separator == ",\n" else "[]\n")


def write_json_lines(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write one report per line, flushed so that a reader can follow along."""
    for report in reports:
        stream.writelines(pieces(report.fields()))
        stream.write("\n")
        stream.flush()


ALIGNMENT = 8  # bytes


def write_npz(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Write the tensors by name, with axes and irregular masks; `report` is the remaining JSON.

    The axes are stored as `axes.NAME`, a mask's visible keys as `visible.NAME`, tokens as `tokens` and
    `context_tokens`. `np.load` reads the file without pickle, and `attn show` restores the report.
    """
    (report,) = reports
    tensors = _named_tensors(report)
    arrays: dict[str, Any] = {name: _contiguous(tensor.values) for name, tensor in tensors.items()}
    if report.spec.get("names") is not None:  # files for other tools contain nothing else
        np.savez(stream, **arrays)
        return
    arrays |= _visible_keys(report)
    arrays |= {f"axes.{name}": np.array(tensor.axes) for name, tensor in tensors.items()}
    tokens = {"tokens": report.tokens, "context_tokens": report.context_tokens}
    arrays |= {name: np.array(texts) for name, texts in tokens.items() if texts}
    # savez gives every member the same timestamp, so that equal reports produce equal bytes.
    np.savez(stream, **arrays, report=np.array(_json_without_arrays(report)))


def write_safetensors(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Write the tensors by name; the metadata's `report` holds tokens, axes, settings and statistics.

    The format consists of eight bytes for the header's length, the header as JSON, and the tensors' bytes in
    order (https://huggingface.co/docs/safetensors).
    """
    (report,) = reports
    arrays = {name: _contiguous(tensor.values) for name, tensor in _named_tensors(report).items()}
    arrays |= _visible_keys(report)
    # Larger number types come first, so that each tensor is aligned.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    header: dict[str, Any] = {"__metadata__": {"report": _json_without_arrays(report)}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        dtype = f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    stream.write(len(text).to_bytes(ALIGNMENT, "little") + text)
    for array in arrays.values():
        stream.write(array.data)


def _named_tensors(report: Report) -> dict[str, NamedTensor]:
    """Return the tensors by name; tensors among the statistics are named like `rows.entropy`."""
    return {**report.tensors} | {
        f"{group}.{name}": tensor
        for group, members in report.statistics.items()
        if isinstance(members, Tensors)
        for name, tensor in members.items()
    }


def _json_without_arrays(report: Report) -> str:
    """Return the report's JSON with null in place of each array."""
    fields: dict[str, Any] = report.fields()
    for tensor in fields["tensors"].values():
        tensor["values"] = None
        if "visible" in tensor.get("mask", ()):
            tensor["mask"]["visible"] = None
    fields["statistics"] = {
        group: dict.fromkeys(members) if isinstance(members, Tensors) else members
        for group, members in report.statistics.items()
    }
    return "".join(pieces(fields))


def _visible_keys(report: Report) -> dict[str, np.ndarray]:
    """Return the visible keys of irregular masks, named like `visible.weights`."""
    masks = {f"visible.{name}": tensor.mask for name, tensor in report.tensors.items()}
    return {
        name: _contiguous(mask.visible)
        for name, mask in masks.items()
        if mask is not None and mask.visible is not None
    }


def _contiguous(values: np.ndarray) -> np.ndarray:
    """Return the numbers in row-major order and little-endian bytes."""
    return np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))


ColumnTypes = Mapping[str, str]
RowBlock = Mapping[str, list[Any]]
RowBlocks = Iterable[RowBlock]

ENDS = re.compile('[,"\r\n]')
# The names of the types here and in pyarrow.
TYPES = {"integer": "int64", "number": "float64", "boolean": "bool_", "text": "string"}


def write_csv_table(columns: ColumnTypes, blocks: RowBlocks, stream: IO[str]) -> None:
    """Write a header, then one line per row; missing values are empty cells.

    Strings are written literally, quoted if necessary, so that equal cells are equal strings; in a terminal,
    every character is made visible.
    """
    show = plain_text if stream.isatty() else str
    stream.write(",".join(_quoted(name) for name in columns) + "\n")
    for block in blocks:
        cells = [_cells(block[name], kind, show) for name, kind in columns.items()]
        stream.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def _cells(cells: list[Any], kind: str, show: Callable[[str], str]) -> list[str]:
    match kind:
        case "text":
            texts = _texts(cells)
            quoted = {text: _quoted(show(text)) for text in {*texts} if text is not None}
            return ["" if text is None else quoted[text] for text in texts]
        case "boolean":
            return ["" if cell is None else _text(cell) for cell in cells]
    return ["" if cell is None else repr(cell) for cell in cells]


def _texts(cells: Iterable[Any]) -> list[str | None]:
    """Return the cells as strings; joined tables may mix strings with numbers and Booleans."""
    return [cell if cell is None or isinstance(cell, str) else _text(cell) for cell in cells]


def _text(cell: Any) -> str:
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _quoted(text: str) -> str:
    """Return a string as one cell (RFC 4180), quoted if it is empty or would end the cell or the line."""
    return '"' + text.replace('"', '""') + '"' if not text or ENDS.search(text) else text


def write_jsonl(columns: ColumnTypes, blocks: RowBlocks, stream: IO[str]) -> None:
    """Write one object per row, with non-ASCII characters escaped."""
    for block in blocks:
        rows = zip(*(block[name] for name in columns), strict=True)
        lines = (json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows)
        stream.writelines(lines)


def write_parquet_table(columns: ColumnTypes, blocks: RowBlocks, stream: IO[bytes]) -> None:
    """Write one row group per block, so that memory holds one block; repeated strings use a dictionary."""
    import pyarrow
    from pyarrow import parquet

    types = {name: getattr(pyarrow, TYPES[kind])() for name, kind in columns.items()}
    schema = pyarrow.schema(list(types.items()))
    with parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for block in blocks:
            cells = {name: _texts(block[name]) if columns[name] == "text" else block[name] for name in types}
            arrays = [pyarrow.array(cells[name], kind) for name, kind in types.items()]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))


WRITERS: dict[str, Callable[[ColumnTypes, RowBlocks, IO[Any]], None]] = {
    "csv": write_csv_table,
    "jsonl": write_jsonl,
    "parquet": write_parquet_table,
}
SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


BLOCK = 2**16
# The type that holds the cells of both columns, or text if no other type does.
WIDER = {frozenset((kind,)): kind for kind in TYPES} | {frozenset(("integer", "number")): "number"}
SINGULAR = {"scores": "score", "weights": "weight", "keys": "key"}


class DataTable(NamedTuple):
    """The type of each column, and the rows, which are made block by block as they are written."""

    columns: Mapping[str, str]
    blocks: Callable[[], Iterator[RowBlock]]


def _column_type(cells: Sequence[Any]) -> str | None:
    """Return the type that holds every cell, or None if all cells are empty."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float} and kinds:
        return "integer" if kinds == {int} else "number"
    return "boolean" if kinds == {bool} else "text" if kinds else None


def rows_table(rows: Sequence[Row]) -> DataTable:
    """Return one column per name, or one per index for a list of numbers; empty columns are left out."""
    cells = [_cells_by_column(row) for row in rows]
    names = dict.fromkeys(name for row in cells for name in row)
    columns = {name: [row.get(name) for row in cells] for name in names}
    types = {name: kind for name, column in columns.items() if (kind := _column_type(column)) is not None}
    return DataTable(types, lambda: iter([{name: columns[name] for name in types}] if types else []))


def _cells_by_column(row: Row) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for name, cell in row.items():
        items = (
            {f"{name}_{i}": item for i, item in enumerate(cell)} if isinstance(cell, list) else {name: cell}
        )
        for column, item in items.items():
            # Ids are written exactly, so that they match the user's.
            cells[column] = plain_text(item) if isinstance(item, str) and name != "id" else plain(item)
    return cells


def tensors_table(report: Report, tensors: Mapping[str, NamedTensor]) -> DataTable:
    """Return one row per index on the first tensor's axes, and one column per tensor; others may lack axes.

    Tokens accompany their positions. A tensor with an additional axis has one column per index on that axis.
    """
    first = next(iter(tensors.values()))
    axes, shape = first.axes, first.values.shape
    tokens = {axis: [plain_text(token) for token in axis_tokens(report, axis)] for axis in axes}
    sizes = zip(axes, shape, strict=True)
    places_of = {axis: np.array(places_along(report, axis, size)) for axis, size in sizes}
    columns: dict[str, str] = {}
    for axis in axes:
        columns |= {axis: "integer"} | ({f"{axis}_text": "text"} if tokens[axis] else {})
    values = {}
    for name, tensor in tensors.items():
        for column, array in _spread(name, tensor, axes).items():
            if array.dtype.kind != "f" or np.isfinite(array).any():
                values[column] = np.broadcast_to(array, shape)
                columns[column] = "number" if array.dtype.kind == "f" else "integer"

    def blocks() -> Iterator[RowBlock]:
        for start in range(0, prod(shape), BLOCK):
            rows = slice(start, min(start + BLOCK, prod(shape)))
            places = np.unravel_index(np.arange(rows.start, rows.stop), shape)
            block = {name: plain(array.flat[rows]) for name, array in values.items()}
            for axis, place in zip(axes, places, strict=True):
                block[axis] = places_of[axis][place].tolist()
                if tokens[axis]:
                    block[f"{axis}_text"] = [tokens[axis][i] for i in place]
            yield block

    return DataTable(columns, blocks)


def stacked(parts: Sequence[tuple[Mapping[str, Cell], DataTable]]) -> DataTable:
    """Stack tables vertically with the union of their columns; each table's extra cells begin its rows."""
    names = dict.fromkeys(name for labels, _ in parts for name in labels)
    kinds = {name: _column_type([labels.get(name) for labels, _ in parts]) for name in names}
    columns = {name: kind for name, kind in kinds.items() if kind is not None}
    for _, table in parts:
        for name, kind in table.columns.items():
            columns[name] = WIDER.get(frozenset((kind, columns.get(name, kind))), "text")

    def blocks() -> Iterator[RowBlock]:
        for labels, table in parts:
            for block in table.blocks():
                count = len(next(iter(block.values()), ()))
                yield {name: block.get(name) or [labels.get(name)] * count for name in columns}

    return DataTable(columns, blocks)


def _spread(name: str, tensor: NamedTensor, axes: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return the columns of a tensor, each broadcastable along the axes that the tensor lacks."""
    name = "_".join(SINGULAR.get(word, word) for word in name.split("_"))
    parts = {name: tensor.values}
    if tensor.axes[-1] not in axes:
        parts = {f"{name}_{i}": tensor.values[..., i] for i in range(tensor.values.shape[-1])}
    place = tuple(slice(None) if axis in tensor.axes else np.newaxis for axis in axes)
    return {column: array[place] for column, array in parts.items()}


MATRIX = ("query", "key")
PLACE_TEXTS = ("module", "kind", "stack")
"""The columns that describe a head's place, in addition to its layer."""
LONG_COLUMNS = ("name", "row", *(name for axis in AXES for name in (axis, f"{axis}_text")), "text", "value")


def main_table(report: Report) -> DataTable:
    """Return the statistic that the Spec names or, if it names none, the first of these that exists.

    Tables come before other statistics; then the weights, with all tensors that share their axes; row
    statistics; groups of numbers with the same names, one row per group; tensors.
    """
    spec_class = known_spec_class(report.experiment, report.spec)
    named = spec_class.main_table if spec_class else None
    if named is not None and named in report.statistics:
        return table_named(report, named)
    first = next(iter(report.statistics), "")
    if report.table(first):
        return table_named(report, first)
    matrices = {name: tensor for name, tensor in report.tensors.items() if tensor.axes[-2:] == MATRIX}
    if matrices:
        return tensors_table(report, _tensors_with_axes_of_weights(_with_scaled_scores(matrices)))
    if rows := report.tensors_of("rows"):
        return tensors_table(report, rows)
    groups = _groups_of_same_names(report)
    if len(groups) > 1 or not report.tensors:
        return rows_table(groups)
    return tensors_table(report, _tensors_with_axes_of_weights(report.tensors))


def table_named(report: Report, name: str) -> DataTable:
    """Return a tensor, a statistic, all single numbers (`statistics`), or every number in long form (`all`).

    If a table of this kind of result is empty, only its columns are returned. Raises NoSuchTable for any
    other name.
    """
    if name not in report.statistics and name in (declared := _declared_tables(report)):
        return DataTable(declared[name], lambda: iter([]))
    tensors = _with_scaled_scores(report.tensors)
    names = tuple(dict.fromkeys((*tensors, *report.statistics, "statistics", "all")))
    if name not in names:
        raise NoSuchTable(name, names)
    if name == "all":
        return _long_form(report)
    if name in tensors:
        return tensors_table(report, {name: tensors[name]})
    if name == "statistics":
        return rows_table(
            [
                {"statistic": f"{group}.{member}", "value": number}
                for group, numbers in report.statistics.items()
                if isinstance(numbers, Numbers)
                for member, number in numbers.items()
            ]
        )
    match report.statistics[name]:
        case Tensors() as tensors:
            return tensors_table(report, tensors)
        case Numbers() as numbers:
            return rows_table([numbers])
        case table:
            return rows_table(_layer_and_head_first(table))


def _declared_tables(report: Report) -> dict[str, dict[str, str]]:
    """Return the tables that results of this class may have, with the types of their required columns."""
    return {
        each.name: {
            name: "text" if str in column.kinds else "number" if float in column.kinds else "integer"
            for name, column in each.kind.columns.items()
            if column.is_needed
        }
        for each in report.result.groups()
        if each.is_table and each.kind is not None
    }


def _tensors_with_axes_of_weights(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """Return every tensor with the axes of the weights, or of the first tensor, with the weights last."""
    like = tensors.get("weights", next(iter(tensors.values())))
    return {
        name: tensor
        for name, tensor in sorted(tensors.items(), key=lambda item: item[0] == "weights")
        if (tensor.axes, tensor.values.shape) == (like.axes, like.values.shape)
    }


def _groups_of_same_names(report: Report) -> list[Row]:
    """Return a row for each group with the same numbers as the first; numbers stored by group are columns."""
    groups = {name: group for name, group in report.statistics.items() if isinstance(group, Numbers)}
    names = next(iter(groups.values())).keys() if groups else ()
    kinds = {name: group for name, group in groups.items() if group.keys() == names}
    by_kind = {name: group for name, group in groups.items() if group.keys() <= kinds.keys()}
    return [
        {"kind": kind, **group} | {name: column.get(kind) for name, column in by_kind.items()}
        for kind, group in kinds.items()
    ]


def _layer_and_head_first(table: Table) -> list[Row]:
    """Return the rows. Those of a survey begin with layer and head, and omit texts implied by the layer."""
    if not table or not {*PLACES, "stack"} <= table[0].keys():
        return [*table]
    num_layers = len({row["layer"] for row in table})
    implied = {
        name for name in PLACE_TEXTS if len({(row["layer"], row.get(name)) for row in table}) == num_layers
    }
    return [
        {name: row[name] for name in PLACES}
        | {name: cell for name, cell in row.items() if name not in implied}
        for row in table
    ]


def _long_form(report: Report) -> DataTable:
    """Return each number as a row: its name (`statistics.scores.mean`, `tensors.weights`), place and value.

    `row` is the table row, and `rank` the index in a list. `value` holds numbers, and `text` holds strings.
    """
    table = stacked(list(_long_parts(report)))
    return table._replace(
        columns={name: table.columns[name] for name in LONG_COLUMNS if name in table.columns}
    )


def _long_parts(report: Report) -> Iterator[tuple[dict[str, Cell], DataTable]]:
    groups = {f"statistics.{name}": statistic for name, statistic in report.statistics.items()}
    for group, members in {**groups, "tensors": Tensors(report.tensors)}.items():
        match members:
            case Tensors():
                for name, tensor in members.items():
                    yield {"name": f"{group}.{name}"}, tensors_table(report, {"value": tensor})
            case Numbers():
                for name, number in members.items():
                    yield {"name": f"{group}.{name}"}, rows_table([{"value": number}])
            case Table():
                for name in dict.fromkeys(name for row in members for name in row):
                    yield {"name": f"{group}.{name}"}, rows_table(_long_column(members, name))


def _long_column(table: Table, name: str) -> list[Row]:
    """Return the cells of one column, one cell per row."""
    rows: list[Row] = []
    for number, row in enumerate(table):
        cell = row.get(name)
        if isinstance(cell, list):
            rows += [{"row": number, "rank": rank, "value": item} for rank, item in enumerate(cell)]
        else:
            rows.append({"row": number, ("text" if isinstance(cell, str) else "value"): cell})
    return rows


def _with_scaled_scores(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    """Add the scaled scores after the scores, if their scale is known."""
    completed: dict[str, NamedTensor] = {}
    for name, tensor in tensors.items():
        completed[name] = tensor
        if not name.endswith("scores"):
            continue
        scaled = f"{name.removesuffix('scores')}scaled_scores"
        if scaled in tensors:
            completed.pop(scaled, None)  # an explanation already has the scaled scores
            completed[scaled] = tensors[scaled]
        elif tensor.scale is not None:
            # Computed in float64, then rounded like the scores, so that a saved report yields equal numbers.
            product = (tensor.values.astype(np.float64) * tensor.scale).astype(np.float32)
            completed[scaled] = replace(tensor, values=product, scale=None)
    return completed


def write_csv(reports: Iterable[Report], stream: IO[str], display: Display) -> None:
    """Write one line per row at full precision; missing values are empty cells."""
    table = _table(reports, display)
    write_csv_table(table.columns, table.blocks(), stream)


def write_parquet(reports: Iterable[Report], stream: IO[bytes], display: Display) -> None:
    """Write the table that `csv` writes as Parquet, with columns of int64, float64, bool or text."""
    table = _table(reports, display)
    write_parquet_table(table.columns, table.blocks(), stream)


def _table(reports: Iterable[Report], display: Display) -> DataTable:
    """Return the table of a single report, or the stacked tables of several with distinguishing columns.

    All reports are read before the first is written, because a later one may have more columns.
    """
    labels: list[dict[str, Cell]] = []
    tables = []
    for number, report in enumerate(reports):
        tables.append(table_named(report, *display.show) if display.show else main_table(report))
        identity: dict[str, Cell] = {"report": number, "experiment": report.experiment, "id": report.id}
        labels.append(identity | {name: _setting(value) for name, value in report.spec.items()})
    known = {name for table in tables for name in table.columns}
    names = _distinguishing(labels) - known if display.several else set()
    own_cells = [{name: cell for name, cell in label.items() if name in names} for label in labels]
    return stacked(list(zip(own_cells, tables, strict=True)))


def _distinguishing(labels: Sequence[Mapping[str, Cell]]) -> set[str]:
    """Return the report, experiment and id, and the settings that differ between reports."""
    cells: dict[str, set[Cell]] = {}
    for label in labels:
        for name, cell in label.items():
            cells.setdefault(name, set()).add(cell)
    return {"report", "experiment", "id"} | {name for name, values in cells.items() if len(values) > 1}


def _setting(value: Any) -> Cell:
    """Return a setting as a cell; multiple values are comma-separated, as in `attn results`."""
    if isinstance(value, list | tuple):
        return ",".join(str(_setting(item)) for item in value)
    return plain_text(value) if isinstance(value, str) else None if isinstance(value, Mapping) else value
