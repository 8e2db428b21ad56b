"""Whole reports for other programs: JSON at full precision, and arrays by name with the rest as JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, TextIO

import numpy as np

from attncli.plain_text import UNSEEN
from attncli.report import NamedTensor, Report, Tensors, plain
from attncli.views import Display


def _dumps(data: Any) -> str:
    """JSON on one line; characters that a terminal would obey or hide are written as JSON escapes."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    return UNSEEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _array(values: np.ndarray) -> Iterator[str]:
    """A row at a time: lists of Python numbers take eight times the memory of the array."""
    if values.ndim <= 1:
        yield _dumps(plain(values))
        return
    for i, part in enumerate(values):
        yield ", " if i else "["
        yield from _array(part)
    yield "]" if len(values) else "[]"


def pieces(value: Any) -> Iterator[str]:
    """The JSON of mappings, lists and arrays, piece by piece."""
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


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each key of a report on its own line."""
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


def write_lines(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """The same data, one report per line, flushed so that a reader can follow."""
    for report in reports:
        stream.writelines(pieces(report.fields()))
        stream.write("\n")
        stream.flush()


ALIGNMENT = 8  # bytes


def write_npz(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Tensors by name, their axes as `axes.NAME`, tokens, context_tokens; `report` is the rest, as JSON.

    `np.load` reads it without pickle, and `attn show` restores the report.
    """
    (report,) = reports
    tensors = _named_tensors(report)
    arrays: dict[str, Any] = {name: _contiguous(tensor) for name, tensor in tensors.items()}
    arrays |= {f"axes.{name}": np.array(tensor.axes) for name, tensor in tensors.items()}
    tokens = {"tokens": report.tokens, "context_tokens": report.context_tokens}
    arrays |= {name: np.array(texts) for name, texts in tokens.items() if texts}
    # savez gives every member the same time, so equal reports are equal bytes.
    np.savez(stream, **arrays, report=np.array(_json_without_arrays(report)))


def write_safetensors(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Tensors by name; the metadata's `report` holds tokens, axes, settings and statistics.

    The format: eight bytes with the header's length, the header as JSON, the bytes of the tensors one after
    the other (https://huggingface.co/docs/safetensors).
    """
    (report,) = reports
    arrays = {name: _contiguous(tensor) for name, tensor in _named_tensors(report).items()}
    # Larger numbers first, so that each begins at a multiple of its size.
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
    """The tensors by their names, and those of the statistics as `rows.entropy`."""
    return {**report.tensors} | {
        f"{group}.{name}": tensor
        for group, members in report.statistics.items()
        if isinstance(members, Tensors)
        for name, tensor in members.items()
    }


def _json_without_arrays(report: Report) -> str:
    """The report's JSON form with null in the place of every array."""
    fields: dict[str, Any] = report.fields()
    fields["tensors"] = {name: {**tensor, "values": None} for name, tensor in fields["tensors"].items()}
    fields["statistics"] = {
        group: dict.fromkeys(members) if isinstance(members, Tensors) else members
        for group, members in report.statistics.items()
    }
    return "".join(pieces(fields))


def _contiguous(tensor: NamedTensor) -> np.ndarray:
    """The numbers in order, little end first."""
    return np.ascontiguousarray(tensor.values, dtype=tensor.values.dtype.newbyteorder("<"))
