"""Detects attention that a program computes itself, by following tensors through torch functions."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from attncli.features.record.listening.carrying import (
    blank,
    carry,
    change,
    normalise,
    overwrite,
    pick,
    scatter,
)
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.products import (
    add_product,
    convolve,
    einsum,
    linear,
    measure,
    multiply,
    say_unfollowed,
    sum_entries,
)
from attncli.features.record.listening.softmaxes import exponentiate, softmax
from attncli.features.record.listening.torch_calls import (
    ADDMMS,
    BLANKS,
    CARRYING,
    CONTRACTIONS,
    CONVOLUTIONS,
    COPIES,
    DISTANCES,
    ELEMENTWISE,
    EXPONENTIALS,
    LOOKUPS,
    MEANS,
    NORMS,
    PICKS,
    RECURRENCES,
    SCATTERS,
    SUMMING,
    TorchCall,
)
from attncli.models.torch_functions import MATMULS, SOFTMAXES, functions_named


def follow(
    follower: Follower,
    function: Callable[..., object],
    arguments: Sequence[object],
    named: Mapping[str, object],
    result: object,
) -> None:
    """Follow tensors through a function that returned `result`; empty results are not followed."""
    step = STEPS.get(function)
    if step is not None and not (isinstance(result, Tensor) and not result.numel()):
        step(follower, TorchCall(function, arguments, named, result))


STEPS: dict[Callable[..., object], Callable[[Follower, TorchCall], None]] = {
    **dict.fromkeys(CARRYING, carry),
    **dict.fromkeys(ELEMENTWISE, change),
    **dict.fromkeys(BLANKS, blank),
    **dict.fromkeys(SCATTERS, scatter),
    **dict.fromkeys(PICKS, pick),
    **dict.fromkeys(LOOKUPS, Follower.look_up),
    **dict.fromkeys(RECURRENCES, Follower.recur),
    **dict.fromkeys(NORMS, normalise),
    **dict.fromkeys({functional.linear, *ADDMMS}, linear),
    **dict.fromkeys(CONVOLUTIONS, convolve),
    **dict.fromkeys(MATMULS, multiply),
    **dict.fromkeys(CONTRACTIONS, say_unfollowed),
    **dict.fromkeys(DISTANCES, measure),
    **dict.fromkeys(functions_named("baddbmm"), add_product),
    **dict.fromkeys({torch.einsum, torch.functional.einsum}, einsum),
    **dict.fromkeys(SUMMING | MEANS, sum_entries),
    **dict.fromkeys(SOFTMAXES, softmax),
    **dict.fromkeys(EXPONENTIALS, exponentiate),
    **dict.fromkeys(functions_named("setitem") | COPIES, overwrite),
}
