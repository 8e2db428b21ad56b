"""Records a program in a test: its result, the attention calls and the listener."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.listener import Listener


def heard(program: Callable[[], Any], **settings: Any) -> tuple[Any, list[HeardCall], Listener]:
    """Return a program's result, all its attention calls and the listener, which leaves no mode behind."""
    calls: list[HeardCall] = []
    listener = Listener(calls.append, **{"calls": "all", **settings})
    with listener.listening():
        result = program()
    assert not _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return result, calls, listener


def weights_of(call: HeardCall) -> Tensor:
    """Return the weights, recomputed from the call."""
    weights = attend(call.attention, Wanted(weights=True)).weights
    assert weights is not None
    return weights


def output_of(call: HeardCall) -> Tensor:
    """Return the output (text, head, token, dim), recomputed from the call."""
    assert isinstance(call.attention, AttentionLayer)
    output = attend(call.attention, Wanted(output=True)).output
    assert output is not None
    return output
