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


def scores_after(facts: Scores, tensor: Tensor, call: TorchCall) -> Iterator[tuple[Tensor, Scores | None]]:
    """Yield each result of a function of scores with its facts, or with None if it is no longer scores."""
    function, result = call.function, call.result
    if function in VIEWS:
        for view in result if isinstance(result, tuple | list) else (result,):
            if isinstance(view, Tensor):
                axes = axes_after(facts.axes, tensor, call, view)
                is_plain = facts.is_plain and view.numel() >= tensor.numel()
                yield (
                    view,
                    None if axes is None else replace(facts, axes=axes, is_plain=is_plain, shifted=None),
                )
    elif isinstance(result, Tensor):
        yield result, _changed_scores(facts, tensor, call, result)


def _changed_scores(facts: Scores, tensor: Tensor, call: TorchCall, result: Tensor) -> Scores | None:
    function, facts = call.function, replace(facts, shifted=None)
    if function in SCALINGS | DIVISIONS:
        if function in DIVISIONS and call.get(0, "input", "self") is not tensor:
            return None
        factors = [value for value in (*call.arguments, *call.named.values()) if value is not tensor]
        factor = factors[0] if factors else None
        return scaled_scores(facts, tensor, factor, result, is_divided=function in DIVISIONS)
    axes = axes_after(facts.axes, tensor, call, result)
    if not axes:
        return None
    if function in JOINS:
        return facts.mixed(axes)
    if function in NEGATIONS or (function in SUBTRACTIONS and call.get(1, "other") is tensor):
        facts = replace(facts, scale=-facts.scale)
    if function in SUBTRACTIONS and call.get(0, "input", "self") is tensor and result is not tensor:
        facts = replace(facts, shifted=_before_shift(facts, tensor, call.get(1, "other"), result))
    if function in ADDED | NEGATIONS:
        return replace(facts, axes=axes)
    return replace(facts, axes=axes, through=_name(function)) if function in CHANGING else None


def _before_shift(facts: Scores, tensor: Tensor, subtracted: object, result: Tensor) -> ShiftedScores | None:
    """Return the scores before a tensor was subtracted, or None if it varies along both keys and queries."""
    if not isinstance(subtracted, Tensor) or result.shape != tensor.shape:
        return None
    with unseen():
        axes = aligned(subtracted, facts.axes)
        return None if facts.tokens <= {*labels_in(axes)} else ShiftedScores(tensor.detach(), axes)


def _name(function: object) -> str:
    return str(getattr(function, "__name__", function)).strip("_")


def softmax_axis(facts: Scores, shifted: ShiftedScores, exponentials: Tensor) -> int | None:
    """Return the token axis along which the exponentials of shifted scores sum to 1, or None.

    Along this axis, the exponentials are the softmax of the scores before the shift by logsumexp.
    """
    for axis in range(-1, -exponentials.ndim - 1, -1):
        is_row = -axis > len(shifted.axes) or not shifted.axes[axis]
        if is_row and {part.label for part in facts.axes[axis]} & facts.tokens:
            sums = exponentials.detach().sum(
                axis, dtype=torch.promote_types(exponentials.dtype, torch.float32)
            )
            is_share = (sums - 1).abs() <= NEAR_ONE
            # Rows without keys are 0 or 0/0.
            if bool((is_share | (sums == 0) | sums.isnan()).all()) and bool(is_share.any()):
                return axis
    return None


def scaled_scores(
    facts: Scores, tensor: Tensor, factor: object, result: Tensor, *, is_divided: bool
) -> Scores:
    """Follow scores times a number or a tensor; a tensor constant along the keys scales the queries."""
    if (
        isinstance(factor, Tensor)
        and factor.numel() == 1
        and not factor.is_meta
        and factor.ndim <= tensor.ndim
    ):
        factor = float(factor.detach())
    if isinstance(factor, int | float):
        scale = facts.scale / factor if is_divided else facts.scale * factor
        return replace(facts, scale=scale)
    axes = broadcast(facts.axes, result.shape)
    if not isinstance(factor, Tensor) or result.shape != tensor.shape or len(facts.tokens) < 2:
        return facts.mixed(axes or facts.axes)
    with unseen():
        factor = factor.detach()
        shared = Labelled(1 / factor if is_divided else factor, aligned(factor, facts.axes))
        tokens = facts.tokens.intersection(labels_in(shared.axes))
        if len(tokens) == 2:
            return facts  # a mask of zeros and ones
        if tokens == {facts.right_tokens[0]}:
            right = _times(facts.right, shared, facts, facts.right_tokens[0])
            return replace(facts, is_plain=False) if right is None else replace(facts, right=right)
        left = _times(facts.left, shared, facts, facts.left_tokens[0])
        return replace(facts, is_plain=False) if left is None else replace(facts, left=left)


def _times(side: Labelled, factor: Labelled, facts: Scores, token: int) -> Labelled | None:
    """Multiply a factor of a product by a factor per token."""
    sizes = sizes_in(facts.axes)
    labels = (*(label for label in facts.labels if label not in facts.tokens), token)
    part = laid_out(factor, labels, sizes)
    whole = laid_out(side, (*labels, *facts.dims), {**sizes, **sizes_in(side.axes)})
    if part is None or whole is None:
        return None
    whole = whole * part.reshape(*part.shape, *[1] * (whole.ndim - part.ndim))
    sizes_by_label = zip((*labels, *facts.dims), whole.shape, strict=True)
    return Labelled(whole, tuple(whole_axis(label, size) for label, size in sizes_by_label))
