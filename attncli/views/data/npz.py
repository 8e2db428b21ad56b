"""A report as NumPy's archive of arrays, which `np.load` reads without pickle and `attn show` as it was."""

from collections.abc import Iterable
from typing import BinaryIO
from zipfile import ZipFile, ZipInfo

import numpy as np

from attncli.report import Report
from attncli.views import Display
from attncli.views.data.arrays import contiguous, json_without_arrays, named_tensors


def write(reports: Iterable[Report], stream: BinaryIO, display: Display) -> None:
    """Tensors by name, their axes as `axes.NAME`, tokens, context_tokens; `report` is all else, as JSON."""
    (report,) = reports
    tensors = named_tensors(report)
    arrays = {name: contiguous(tensor) for name, tensor in tensors.items()}
    arrays |= {f"axes.{name}": np.array(tensor.axes) for name, tensor in tensors.items()}
    tokens = {"tokens": report.tokens, "context_tokens": report.context_tokens}
    arrays |= {name: np.array(texts) for name, texts in tokens.items() if texts}
    arrays["report"] = np.array(json_without_arrays(report))
    with ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            # The time of a ZipInfo is always the same, and so are the bytes of a report.
            with archive.open(ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
