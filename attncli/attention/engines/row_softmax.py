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
OF_ROWS = ("logsumexp", "log_total", "sum", "cross", "distance")


class RowArguments(ctypes.Structure):
    """The struct `Rows` of tile_pass.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_queries", "num_keys")),
        *(
            (name, ctypes.c_void_p)
            for name in ("scores", "weights", "sink", "blind", "position", "here", *OF_ROWS, "participation")
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
    participation = scores.new_empty(scores.shape[:3], dtype=torch.float64)
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
        participation.data_ptr(),
    )
    library = tile_pass()
    assert library is not None
    library.attn_softmax_rows(ctypes.byref(arguments), ctypes.c_int64(num_rows))
    logsumexp, log_totals, sums, cross, distance = numbers.unbind()
    found = Softmax(log_totals, sums, cross=cross, participation=participation, distance=distance)
    return weights, logsumexp, found


def _by_torch(
    scores: Tensor, seen: SeenKeys, sink: Tensor | None, buffers: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    weights, exponents = (buffer[: scores.numel()].view(scores.shape) for buffer in buffers)
    reference = scores.amax(dim=-1)
    if sink is not None:  # a row may have scores of -inf alone: all its weight goes to the sink
        reference = reference.clamp(min=torch.finfo(scores.dtype).min / 2)
    if seen.blind is not None:
        reference = reference.masked_fill(seen.blind, 0.0)
    torch.sub(scores, reference.unsqueeze(-1), out=exponents)
    exponents.clamp_(min=LEAST_EXPONENT)  # hidden scores are -inf, and those with a bias of -inf
    torch.mul(exponents, LOG2_E, out=weights).exp2_()  # takes a third of the time of exp
    totals = weights.sum(dim=-1)
    if sink is not None:
        return _below_sink(weights, exponents, totals, reference, sink)
    if seen.blind is not None:
        totals = totals.masked_fill(seen.blind, 1.0)
    weights.mul_(totals.reciprocal().unsqueeze(-1))
    sums = torch.ones_like(totals) if seen.blind is None else (~seen.blind).to(totals).expand_as(totals)
    found = Softmax(totals.log(), sums, exponents=exponents)
    return weights, reference + found.log_totals, found


def _below_sink(
    weights: Tensor, exponents: Tensor, totals: Tensor, reference: Tensor, sink: Tensor
) -> tuple[Tensor, Tensor, Softmax]:
    """The sink joins the denominator, in float64: as far above the keys as it may be."""
    of_keys, above = totals.double().log(), (sink - reference).double()
    log_totals = torch.logaddexp(of_keys, above)
    participation = (2 * log_totals).exp() / torch.linalg.vector_norm(weights, dim=-1).double().square()
    weights.mul_((-log_totals).exp().to(weights.dtype).unsqueeze(-1))
    logsumexp = torch.logaddexp(reference + of_keys, sink.double())
    sums = (of_keys - log_totals).exp()
    found = Softmax(
        log_totals.to(weights.dtype),
        sums.to(weights.dtype),
        exponents=exponents,
        participation=participation,
    )
    return weights, logsumexp.to(weights.dtype), found
