"""Products of a few vectors with the rows of a half-precision weight."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from attncli.core.runtime import FEW_ROWS, library

MOST_ROWS = 8
"""The number of vectors up to which the compiled product is faster than widening the weight for torch."""
HALVES = (torch.bfloat16, torch.float16)


def write_products(
    rows: Float[Tensor, "row dim"],
    weight: Float[Tensor, "out dim"],
    output: Float[Tensor, "row all_out"],
    start: int,
) -> None:
    """Write rows W^T, in float32, into the columns of the output beginning at `start`.

    The weight is widened in registers if the library was built; if it was not, torch widens the whole weight.
    """
    compiled = library(FEW_ROWS)
    if compiled is None:
        output[:, start : start + len(weight)] = functional.linear(rows, weight.to(rows.dtype))
        return
    compiled.attn_few_rows(
        ctypes.c_void_p(rows.data_ptr()),
        ctypes.c_int64(len(rows)),
        ctypes.c_int64(rows.shape[1]),
        ctypes.c_void_p(weight.data_ptr()),
        ctypes.c_int64(len(weight)),
        ctypes.c_void_p(output[:, start:].data_ptr()),
        ctypes.c_int64(output.shape[1]),
        ctypes.c_int64(weight.dtype == torch.bfloat16),
    )
