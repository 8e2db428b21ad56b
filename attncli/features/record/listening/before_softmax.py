"""What becomes of scores between the product of queries and keys and the softmax."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log, prod

import torch
from torch import Tensor

from attncli.features.record.listening.axis_labels import (
    Labelled,
    TensorAxes,
    aligned,
    broadcast,
    labels_in,
    laid_out,
    sizes_in,
    whole_axis,
)
from attncli.features.record.listening.followed import Scores, axes_after
from attncli.features.record.listening.torch_calls import (
    ADDITIONS,
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
EXP = "exp"
"""The function after which scores over their sum are a softmax."""
NEAR_ONE = 1e-3
"""How far from 1 the rows of a softmax by hand may sum, in half precision."""


def scores_after(known: Scores, tensor: Tensor, call: TorchCall) -> Iterator[tuple[Tensor, Scores | None]]:
    """What is known of each result of a function of scores; None where they are no longer that."""
    function, result = call.function, call.result
    if function in VIEWS:
        for view in result if isinstance(result, tuple | list) else (result,):
            if isinstance(view, Tensor):
                axes = axes_after(known.axes, tensor, call, view)
                is_plain = known.is_plain and view.numel() >= tensor.numel()
                yield view, None if axes is None else replace(known, axes=axes, is_plain=is_plain)
    elif isinstance(result, Tensor):
        yield result, _changed_scores(known, tensor, call, result)


def _changed_scores(known: Scores, tensor: Tensor, call: TorchCall, result: Tensor) -> Scores | None:
    function = call.function
    if function in SCALINGS | DIVISIONS:
        if function in DIVISIONS and call.get(0, "input", "self") is not tensor:
            return None
        others = [value for value in (*call.arguments, *call.named.values()) if value is not tensor]
        factor = others[0] if others else None
        if known.through == EXP:
            return _over_sum(known, tensor, factor, is_divided=function in DIVISIONS)
        return scaled_scores(known, tensor, factor, result, is_divided=function in DIVISIONS)
    axes = axes_after(known.axes, tensor, call, result)
    if not axes:
        return None
    if function in JOINS:
        return known.mixed(axes)
    if function in NEGATIONS or (function in SUBTRACTIONS and call.get(1, "other") is tensor):
        known = replace(known, scale=-known.scale, shift=_times_number(known.shift, -1.0))
    if function in ADDITIONS | SUBTRACTIONS:
        known = _after_shift(known, tensor, call, result)
    if function in ADDED | NEGATIONS:
        return replace(known, axes=axes)
    return replace(known, axes=axes, through=_name(function)) if function in CHANGING else None


def _after_shift(known: Scores, tensor: Tensor, call: TorchCall, result: Tensor) -> Scores:
    """Scores of which, alike for all of a row, their largest or the logarithm of a sum was subtracted.

    Only these are the shift of a softmax: after them no score of a row, and one of them almost, is 0.
    """
    left, right = call.get(0, "input", "self"), call.get(1, "other")
    other, alpha = right if left is tensor else left, call.named.get("alpha", 1)
    if isinstance(other, int | float):
        other = torch.tensor(float(other), device=result.device)
    if not isinstance(other, Tensor) or not isinstance(alpha, int | float) or other.is_meta:
        return known
    if result.shape != tensor.shape or other.ndim > tensor.ndim:
        return known
    with unseen():
        axes = aligned(other, known.axes)
        rows = (1,) * (result.ndim - other.ndim) + tuple(other.shape)
        summed = [axis for axis, (row, size) in enumerate(zip(rows, result.shape, strict=True)) if row < size]
        if not summed or known.tokens <= {*labels_in(axes)}:
            return known
        largest = result.detach().amax(summed, keepdim=True).float()
        taken = other.detach().float()
        near = NEAR_ONE + 4 * torch.finfo(result.dtype).eps * taken.abs()
        least = -log(prod(result.shape[axis] for axis in summed))
        if not bool((((largest <= near) & (largest >= least - near)) | ~largest.isfinite()).all()):
            return known
        factor = -1.0 if right is tensor else alpha if call.function in SUBTRACTIONS else -alpha
        return replace(known, shift=Labelled(factor * taken, axes))


def _times_number(shift: Labelled | None, factor: float) -> Labelled | None:
    return None if shift is None else Labelled(shift.tensor * factor, shift.axes)


def _over_sum(known: Scores, tensor: Tensor, factor: object, *, is_divided: bool) -> Scores:
    """Exponentials of scores times or over a factor; one of rows is a shift of the scores."""
    if isinstance(factor, int | float):
        factor = torch.tensor(float(factor), device=tensor.device)
    if not isinstance(factor, Tensor) or factor.ndim > tensor.ndim:
        return replace(known, is_plain=False)
    with unseen():
        axes = aligned(factor, known.axes)
        if known.tokens <= {*labels_in(axes)}:
            return known  # a mask of zeros and ones
        divisor = factor.detach().float().log() * (1.0 if is_divided else -1.0)
        if known.shift is None:
            return replace(known, shift=Labelled(divisor, axes))
        before = _spread(known.shift, known.axes)
        if before is None:
            return replace(known, is_plain=False)
        divisor = divisor.reshape((1,) * (tensor.ndim - divisor.ndim) + tuple(divisor.shape))
        together = before + divisor
        return replace(known, shift=Labelled(together, aligned(together, known.axes)))


def _spread(shift: Labelled, axes: TensorAxes) -> Tensor | None:
    """What was subtracted of scores with these axes, each of its size or 1; None where it has others."""
    sizes, there = sizes_in(axes), labels_in(shift.axes)
    whole = laid_out(shift, labels_in(axes), sizes)
    if whole is None:
        return None
    is_of = [any(part.label in there for part in parts) for parts in axes]
    kept = {part.label for parts, is_there in zip(axes, is_of, strict=True) if is_there for part in parts}
    whole = whole.expand([size if label in kept else 1 for label, size in sizes.items()])
    return whole.reshape(
        [
            prod(part.size for part in parts) if is_there else 1
            for parts, is_there in zip(axes, is_of, strict=True)
        ]
    )


def _name(function: object) -> str:
    return str(getattr(function, "__name__", function)).strip("_")


def axis_of_shares(known: Scores, exponentials: Tensor) -> int | None:
    """The axis of tokens along which exponentials of scores sum to 1; None where they do not yet."""
    for axis in range(-1, -exponentials.ndim - 1, -1):
        if {part.label for part in known.axes[axis]} & known.tokens:
            sums = exponentials.detach().sum(
                axis, dtype=torch.promote_types(exponentials.dtype, torch.float32)
            )
            is_share = (sums - 1).abs() <= NEAR_ONE
            # Rows without a key are 0, or 0 over 0.
            if bool((is_share | (sums == 0) | sums.isnan()).all()) and bool(is_share.any()):
                return axis
    return None


def before_exponential(known: Scores, shares: Tensor) -> tuple[Tensor, Scores]:
    """The scores of which a softmax by hand made shares, and what is known of them.

    They are no longer those of the product where it is lost what was subtracted of them.
    """
    logarithms = shares.detach().float().log()
    shift = None if known.shift is None else _spread(known.shift, known.axes)
    if shift is None:
        return logarithms.to(shares.dtype), replace(known, is_plain=known.is_plain and known.shift is None)
    return (logarithms + shift).to(shares.dtype), known


def scaled_scores(
    known: Scores, tensor: Tensor, factor: object, result: Tensor, *, is_divided: bool
) -> Scores:
    """Scores times a number or a tensor, which is a factor of the queries where all keys have the same."""
    if (
        isinstance(factor, Tensor)
        and factor.numel() == 1
        and not factor.is_meta
        and factor.ndim <= tensor.ndim
    ):
        factor = float(factor.detach())
    if isinstance(factor, int | float):
        scale = known.scale / factor if is_divided else known.scale * factor
        number = 1 / factor if is_divided else float(factor)
        return replace(known, scale=scale, shift=_times_number(known.shift, number))
    axes = broadcast(known.axes, result.shape)
    if not isinstance(factor, Tensor) or result.shape != tensor.shape or len(known.tokens) < 2:
        return known.mixed(axes or known.axes)
    with unseen():
        factor = factor.detach()
        shared = Labelled(1 / factor if is_divided else factor, aligned(factor, known.axes))
        tokens = known.tokens.intersection(labels_in(shared.axes))
        if len(tokens) == 2:
            return known  # a mask of zeros and ones
        if known.shift is not None:
            shift = _times_rows(known.shift, shared, known.axes)
            known = replace(known, shift=shift, is_plain=known.is_plain and shift is not None)
        if tokens == {known.right_tokens[0]}:
            right = _times(known.right, shared, known, known.right_tokens[0])
            return replace(known, is_plain=False) if right is None else replace(known, right=right)
        left = _times(known.left, shared, known, known.left_tokens[0])
        return replace(known, is_plain=False) if left is None else replace(known, left=left)


def _times_rows(shift: Labelled, factor: Labelled, axes: TensorAxes) -> Labelled | None:
    """A shift times a factor of rows; None where it has other axes than the scores."""
    parts = _spread(shift, axes), _spread(factor, axes)
    if parts[0] is None or parts[1] is None:
        return None
    together = parts[0] * parts[1]
    return Labelled(together, aligned(together, axes))


def _times(side: Labelled, factor: Labelled, known: Scores, token: int) -> Labelled | None:
    """A tensor of a product times a factor of its tokens."""
    sizes = sizes_in(known.axes)
    labels = (*(label for label in known.labels if label not in known.tokens), token)
    part = laid_out(factor, labels, sizes)
    whole = laid_out(side, (*labels, *known.dims), {**sizes, **sizes_in(side.axes)})
    if part is None or whole is None:
        return None
    whole = whole * part.reshape(*part.shape, *[1] * (whole.ndim - part.ndim))
    named = zip((*labels, *known.dims), whole.shape, strict=True)
    return Labelled(whole, tuple(whole_axis(label, size) for label, size in named))


def told_by(sizes: Sequence[tuple[int, bool]]) -> tuple[bool, int]:
    """How much is known of an axis: that it is none of one, and how many features it has."""
    return prod(size for size, _ in sizes) > 1, prod(size for size, is_feature in sizes if is_feature)


def tokens_of_operand(
    tensor: Tensor,
    other: Tensor,
    inputs: Sequence[str],
    out: str,
    labels: Mapping[str, Sequence[tuple[int, int, bool]]],
) -> tuple[int, ...]:
    """The labels that may be those of an operand's tokens, the likeliest first.

    Tokens are an axis that the other operand does not have; so may be heads, which are features.
    """
    letters, others = inputs
    sizes = dict(zip(others, other.shape, strict=True))
    here = [letter for letter in out if letter in letters]
    alone = [
        (label, size, is_feature, out.index(letter) >= len(out) - 2)
        for letter in here
        if letter not in sizes or (sizes[letter] == 1 < tensor.shape[letters.index(letter)])
        for label, size, is_feature in labels[letter]
        if size > 1 or letter not in sizes
    ]
    # Tokens rather than features, several rather than one, the last rather than the first.
    ranked = sorted(reversed(alone), key=lambda each: (each[2], each[1] == 1, not each[3]))
    return tuple(label for label, *_ in ranked)
