"""A report as arrays by name (npz or safetensors), with everything else in it as JSON beside them."""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from attncli.report import NamedTensor, Report, Tensors
from attncli.views import Display
from attncli.views.json import pieces

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
