"""Weights of whole rows from their scores, and what their statistics need: compiled, or by torch."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.visibility import SeenKeys
from attncli.compiled import tile_pass
from attncli.statistics.rows import Softmax

LEAST_EXPONENT = -800.0
"""exp of it is 0 in float64, and 0 times it is 0: a hidden score (-inf) adds nothing to an entropy."""
LOG2_E = 1.4426950408889634
OF_ROWS = ("reference", "highest", "log_total", "sum", "cross", "squares", "distance")


class RowArguments(ctypes.Structure):
    """The struct `Rows` of tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_queries", "num_keys")),
        *(
            (name, ctypes.c_void_p)
            for name in ("scores", "weights", "sink", "blind", "position", "here", *OF_ROWS)
        ),
    )


def softmax_rows(
    scores: Float[Tensor, "text head query key"],
    seen: SeenKeys,
    sink: Float[Tensor, "#text #head 1"] | None,
    buffers: Float[Tensor, "2 size"],
) -> tuple[Tensor, Float[Tensor, "text head query"], Softmax]:
    """exp(score - logsumexp) in the first buffer, the logsumexp, and how the weights came of the scores.

    Hidden scores are -inf. The sink, a score, joins the denominator alone. A row without a key has weights 0.
    """
    if scores.dtype == torch.float32 and scores.device.type == "cpu" and tile_pass() is not None:
        return _compiled(scores, seen, sink, buffers[0])
    return _by_torch(scores, seen, sink, buffers)


def _compiled(
    scores: Tensor, seen: SeenKeys, sink: Tensor | None, buffer: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    weights = buffer[: scores.numel()].view(scores.shape)
    numbers = scores.new_empty(len(OF_ROWS), *scores.shape[:3])
    if "places" not in seen.shared:
        seen.shared["places"] = tuple(tensor.to(scores.dtype) for tensor in (seen.columns, seen.positions))
    places = (tensor.data_ptr() for tensor in seen.shared["places"])
    of_rows = [
        None if tensor is None else tensor.expand(scores.shape[:3]).contiguous()
        for tensor in (sink, seen.blind)
    ]
    num_rows, start = numbers[0].numel(), numbers.data_ptr()
    arguments = RowArguments(
        *scores.shape[2:],
        scores.data_ptr(),
        weights.data_ptr(),
        *(None if tensor is None else tensor.data_ptr() for tensor in of_rows),
        *places,
        *range(start, start + numbers.nbytes, num_rows * numbers.itemsize),
    )
    library = tile_pass()
    assert library is not None
    library.attn_softmax_rows(ctypes.byref(arguments), ctypes.c_int64(num_rows))
    reference, highest, log_totals, sums, cross, squares, distance = numbers.unbind()
    found = Softmax(
        log_totals, None if sink is None else highest, sums, cross=cross, squares=squares, distance=distance
    )
    return weights, reference + log_totals, found


def _by_torch(
    scores: Tensor, seen: SeenKeys, sink: Tensor | None, buffers: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    weights, exponents = (buffer[: scores.numel()].view(scores.shape) for buffer in buffers)
    highest = scores.amax(dim=-1)
    reference = highest if sink is None else torch.maximum(highest, sink)
    if seen.blind is not None:
        reference = reference.masked_fill(seen.blind, 0.0)
    torch.sub(scores, reference.unsqueeze(-1), out=exponents)
    if seen.hidden is not None:
        exponents.clamp_(min=LEAST_EXPONENT)
    torch.mul(exponents, LOG2_E, out=weights).exp2_()  # takes a third of the time of exp
    totals = weights.sum(dim=-1)
    sums = None
    if sink is not None:
        keys_alone, totals = totals, totals + (sink - reference).exp()
        sums = keys_alone / totals
    if seen.blind is not None:
        totals = totals.masked_fill(seen.blind, 1.0)
    weights.mul_(totals.reciprocal().unsqueeze(-1))
    if sums is None:
        sums = torch.ones_like(totals) if seen.blind is None else (~seen.blind).to(totals).expand_as(totals)
    found = Softmax(totals.log(), None if sink is None else highest - reference, sums, exponents=exponents)
    return weights, reference + found.log_totals, found
