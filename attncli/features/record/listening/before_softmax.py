"""Follows scores from the product of queries and keys to the softmax."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncli.features.record.listening.axis_labels import (
    Labelled,
    aligned,
    broadcast,
    labels_in,
    laid_out,
    sizes_in,
    whole_axis,
)
from attncli.features.record.listening.followed import Scores, ShiftedScores, axes_after
from attncli.features.record.listening.torch_calls import (
    CASTS,
    DIVISIONS,
    DROPOUTS,
    ELEMENTWISE,
    EXPONENTIALS,
    FILLS,
    JOINS,
    NEGATIONS,
    SUBTRACTIONS,
    SUMS,
    VIEWS,
    TorchCall,
    unseen,
)
from attncli.models.torch_functions import SCALINGS

ADDED = SUMS | FILLS | CASTS | DROPOUTS
CHANGING = ELEMENTWISE | EXPONENTIALS
NEAR_ONE = 1e-3
"""Largest difference from 1 of the row sums of a softmax by hand, in half precision."""


def scores_after(known: Scores, tensor: Tensor, call: TorchCall) -> Iterator[tuple[Tensor, Scores | None]]:
    """Yield each result of a function of scores with its facts, or None if it is not scores any more."""
    function, result = call.function, call.result
    if function in VIEWS:
        for view in result if isinstance(result, tuple | list) else (result,):
            if isinstance(view, Tensor):
                axes = axes_after(known.axes, tensor, call, view)
                is_plain = known.is_plain and view.numel() >= tensor.numel()
                yield (
                    view,
                    None if axes is None else replace(known, axes=axes, is_plain=is_plain, shifted=None),
                )
    elif isinstance(result, Tensor):
        yield result, _changed_scores(known, tensor, call, result)


def _changed_scores(known: Scores, tensor: Tensor, call: TorchCall, result: Tensor) -> Scores | None:
    function, known = call.function, replace(known, shifted=None)
    if function in SCALINGS | DIVISIONS:
        if function in DIVISIONS and call.get(0, "input", "self") is not tensor:
            return None
        factors = [value for value in (*call.arguments, *call.named.values()) if value is not tensor]
        factor = factors[0] if factors else None
        return scaled_scores(known, tensor, factor, result, is_divided=function in DIVISIONS)
    axes = axes_after(known.axes, tensor, call, result)
    if not axes:
        return None
    if function in JOINS:
        return known.mixed(axes)
    if function in NEGATIONS or (function in SUBTRACTIONS and call.get(1, "other") is tensor):
        known = replace(known, scale=-known.scale)
    if function in SUBTRACTIONS and call.get(0, "input", "self") is tensor and result is not tensor:
        known = replace(known, shifted=_before_shift(known, tensor, call.get(1, "other"), result))
    if function in ADDED | NEGATIONS:
        return replace(known, axes=axes)
    return replace(known, axes=axes, through=_name(function)) if function in CHANGING else None


def _before_shift(known: Scores, tensor: Tensor, subtracted: object, result: Tensor) -> ShiftedScores | None:
    """The scores before a tensor was subtracted, or None unless it is constant along keys or queries."""
    if not isinstance(subtracted, Tensor) or result.shape != tensor.shape:
        return None
    with unseen():
        axes = aligned(subtracted, known.axes)
        return None if known.tokens <= {*labels_in(axes)} else ShiftedScores(tensor.detach(), axes)


def _name(function: object) -> str:
    return str(getattr(function, "__name__", function)).strip("_")


def softmax_axis(known: Scores, shifted: ShiftedScores, exponentials: Tensor) -> int | None:
    """The axis of tokens along which the exponentials of shifted scores sum to 1, or None.

    Along it they are the softmax of the scores before the shift by logsumexp.
    """
    for axis in range(-1, -exponentials.ndim - 1, -1):
        is_row = -axis > len(shifted.axes) or not shifted.axes[axis]
        if is_row and {part.label for part in known.axes[axis]} & known.tokens:
            sums = exponentials.detach().sum(
                axis, dtype=torch.promote_types(exponentials.dtype, torch.float32)
            )
            is_share = (sums - 1).abs() <= NEAR_ONE
            # Rows without a key are 0 or 0/0.
            if bool((is_share | (sums == 0) | sums.isnan()).all()) and bool(is_share.any()):
                return axis
    return None


def scaled_scores(
    known: Scores, tensor: Tensor, factor: object, result: Tensor, *, is_divided: bool
) -> Scores:
    """Scores times a number or a tensor; a tensor constant along the keys becomes a factor of the queries."""
    if (
        isinstance(factor, Tensor)
        and factor.numel() == 1
        and not factor.is_meta
        and factor.ndim <= tensor.ndim
    ):
        factor = float(factor.detach())
    if isinstance(factor, int | float):
        scale = known.scale / factor if is_divided else known.scale * factor
        return replace(known, scale=scale)
    axes = broadcast(known.axes, result.shape)
    if not isinstance(factor, Tensor) or result.shape != tensor.shape or len(known.tokens) < 2:
        return known.mixed(axes or known.axes)
    with unseen():
        factor = factor.detach()
        shared = Labelled(1 / factor if is_divided else factor, aligned(factor, known.axes))
        tokens = known.tokens.intersection(labels_in(shared.axes))
        if len(tokens) == 2:
            return known  # a mask of zeros and ones
        if tokens == {known.right_tokens[0]}:
            right = _times(known.right, shared, known, known.right_tokens[0])
            return replace(known, is_plain=False) if right is None else replace(known, right=right)
        left = _times(known.left, shared, known, known.left_tokens[0])
        return replace(known, is_plain=False) if left is None else replace(known, left=left)


def _times(side: Labelled, factor: Labelled, known: Scores, token: int) -> Labelled | None:
    """A factor of a product, multiplied with a factor per token."""
    sizes = sizes_in(known.axes)
    labels = (*(label for label in known.labels if label not in known.tokens), token)
    part = laid_out(factor, labels, sizes)
    whole = laid_out(side, (*labels, *known.dims), {**sizes, **sizes_in(side.axes)})
    if part is None or whole is None:
        return None
    whole = whole * part.reshape(*part.shape, *[1] * (whole.ndim - part.ndim))
    sizes_by_label = zip((*labels, *known.dims), whole.shape, strict=True)
    return Labelled(whole, tuple(whole_axis(label, size) for label, size in sizes_by_label))
