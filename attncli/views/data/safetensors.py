"""A report as safetensors: its tensors by name, all else of it as JSON in the metadata.

The format: eight bytes of the header's length, the header as JSON, the bytes of the tensors one after the
other (https://huggingface.co/docs/safetensors).
"""

import json
from collections.abc import Iterable
from typing import Any, BinaryIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.data.arrays import contiguous, json_without_arrays, named_tensors

KINDS = {"f": "F", "i": "I", "u": "U"}
ALIGNMENT = 8


def write(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Tensors by name; the metadata's `report` holds tokens, axes, settings and statistics."""
    (report,) = reports
    arrays = {name: contiguous(tensor) for name, tensor in named_tensors(report).items()}
    # Larger numbers first, so that each begins at a multiple of its size.
    arrays = dict(sorted(arrays.items(), key=lambda item: -item[1].itemsize))
    header: dict[str, Any] = {"__metadata__": {"report": json_without_arrays(report)}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        kind = f"{KINDS[array.dtype.kind]}{8 * array.itemsize}"
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    stream.write(len(text).to_bytes(ALIGNMENT, "little") + text)
    for array in arrays.values():
        stream.write(array.data)
