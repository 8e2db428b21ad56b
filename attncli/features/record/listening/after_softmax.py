"""Follows weights from their softmax to their product with the values."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attncli.features.record.listening.axis_labels import Labelled, TensorAxes, aligned, labels_in, resized
from attncli.features.record.listening.followed import (
    JOINED,
    Weights,
    are_shares,
    axes_after,
    write_count,
)
from attncli.features.record.listening.torch_calls import (
    CASTS,
    DIVISIONS,
    DROPOUTS,
    ELEMENTWISE,
    FILLS,
    JOINS,
    ORDERS,
    OVERWRITING,
    SUBTRACTIONS,
    SUMS,
    VIEWS,
    TorchCall,
    unseen,
)
from attncli.models.torch_functions import SCALINGS

CLOSE = 1e-5
MIXING = JOINS | SUMS | ELEMENTWISE


def weights_after(
    facts: Weights, tensor: Tensor, call: TorchCall, *, is_joined: bool
) -> Iterator[tuple[Tensor, Weights | None]]:
    """Yield each result of a function of weights with its facts, or with None if it is no longer weights.

    `is_joined`: an argument has weights from another softmax.
    """
    function, result = call.function, call.result
    if function in DROPOUTS and not _drops(call):
        if isinstance(result, Tensor) and result is not tensor:
            yield result, facts
        return
    if _is_in_place(call):
        facts = _overwritten(facts, tensor)
    if function in VIEWS:
        for view in result if isinstance(result, tuple | list) else (result,):
            if isinstance(view, Tensor):
                yield view, _viewed(facts, tensor, call, view)
    elif isinstance(result, Tensor):
        axes = axes_after(facts.axes, tensor, call, result)
        changed = None if axes is None else _changed(facts, tensor, call, axes)
        if changed is not None and is_joined:
            unread = changed.unread or (JOINED if function in SUBTRACTIONS else None)
            changed = replace(changed, is_joined=True, unread=unread)
        yield result, changed


def _is_in_place(call: TorchCall) -> bool:
    return call.function in OVERWRITING or call.named.get("inplace") is True


def _overwritten(facts: Weights, tensor: Tensor) -> Weights:
    """Mark weights as overwritten: other views of these weights no longer hold the result of the softmax."""
    softmax = facts.softmax
    softmax.is_changed = True
    if tensor.numel() < softmax.result.tensor.numel():
        return replace(facts, is_whole=False)
    return replace(facts, softmax=replace(softmax, version=write_count(softmax.result.tensor)))


def _changed(facts: Weights, tensor: Tensor, call: TorchCall, axes: TensorAxes) -> Weights | None:
    function, result = call.function, call.result
    assert isinstance(result, Tensor)
    if function in MIXING:
        return None if facts.is_value else facts.mixed(axes)
    if function in DROPOUTS:
        before = facts.before
        if not _is_in_place(call) and not facts.is_dropped:
            with unseen():
                before = Labelled(tensor.detach(), facts.axes)
        return replace(facts, is_dropped=True, before=before)
    if function in FILLS:
        if not facts.is_whole or facts.is_dropped or result.shape != tensor.shape:
            return facts.mixed(axes)
        with unseen():
            filled = Labelled(result.detach(), axes)
            if not are_shares(filled, facts.key):
                return facts.mixed(axes)
            softmax = replace(facts.softmax, result=filled, is_changed=False, version=None)
        return replace(facts, softmax=softmax, is_filled=True)
    if function in SCALINGS or (function in DIVISIONS and call.get(0, "input", "self") is tensor):
        return _scaled(facts, tensor, call, axes)
    if function in ORDERS:
        return facts.mixed(axes)
    return replace(facts, axes=axes) if function in CASTS else None


def _is_one(factor: Tensor) -> bool:
    """Return True if a factor is 1 up to rounding, as the sum of a row of weights is."""
    rounding = 4 * torch.finfo(factor.dtype).eps if factor.is_floating_point() else 0.0
    return bool(((factor - 1).abs() <= max(CLOSE, rounding)).all())


def _scaled(facts: Weights, tensor: Tensor, call: TorchCall, axes: TensorAxes) -> Weights:
    """Follow weights times a factor per row or key, or times values in a product that is summed later."""
    result = call.result
    assert isinstance(result, Tensor)
    arguments = (*call.arguments, *call.named.values())
    factors = [value for value in arguments if value is not tensor]
    factor = factors[0] if factors and sum(value is tensor for value in arguments) == 1 else tensor
    if isinstance(factor, Tensor) and factor is not tensor and result.shape != tensor.shape:
        with unseen():
            value = Labelled(factor.detach(), aligned(factor, axes))
            times = Labelled(tensor.detach(), facts.axes), value, facts
        return replace(facts.mixed(axes), times=times)
    if isinstance(factor, Tensor):
        with unseen():
            has_keys = facts.key in labels_in(aligned(factor, axes))
            is_one = not has_keys and not factor.is_meta and _is_one(factor)
    else:
        has_keys, is_one = False, factor == 1
    if is_one:
        return replace(facts, axes=axes)
    if has_keys or facts.is_filled or not facts.is_whole:
        return facts.mixed(axes)
    return replace(facts, axes=axes, is_scaled=True)


def _viewed(facts: Weights, tensor: Tensor, call: TorchCall, view: Tensor) -> Weights | None:
    axes = axes_after(facts.axes, tensor, call, view)
    if axes is None:  # indexed by numbers
        axes = resized(facts.axes, view.shape)
        return None if axes is None else facts.mixed(axes)
    is_cut = view.numel() < tensor.numel()
    num_keys, num_left = (
        sum(part.size for parts in each for part in parts if part.label == facts.key)
        for each in (facts.axes, axes)
    )
    if num_left < num_keys:
        product = facts.softmax.product
        # The only key, without the sink column beside it.
        is_only_key = not num_left and product is not None and facts.key not in product.labels
        return replace(facts, axes=axes, is_whole=False, key=None if is_only_key else facts.key)
    return replace(facts, axes=axes, is_cut=facts.is_cut or is_cut)


def _drops(call: TorchCall) -> bool:
    """Return True if entries are dropped: in training, with a probability above 0."""
    chance, is_training = call.get(1, "p"), call.get(2, "training", "train")
    return chance != 0 and is_training is not False
