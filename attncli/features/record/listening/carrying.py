"""Functions that leave a tensor what it was: scores, weights, or a projection of the same tensor."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from attncli.features.record.listening.after_softmax import weights_after
from attncli.features.record.listening.axis_labels import whole_axis
from attncli.features.record.listening.before_softmax import scores_after
from attncli.features.record.listening.followed import (
    PICKED,
    Blank,
    Followed,
    Outer,
    Projected,
    Scores,
    Weights,
    merged_projections,
)
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.origins import OF_PARAMETERS
from attncli.features.record.listening.torch_calls import (
    COPIES,
    VIEWING,
    TorchCall,
    carried_features,
    factors_of_outer,
    feature_axes,
    picked_axis,
)
from attncli.models.torch_functions import SCALINGS


def carry(follower: Follower, call: TorchCall) -> None:
    """What is known of an argument holds for the result, changed as the function changes it."""
    known = [(tensor, about) for tensor in call.tensors() if (about := follower.of(tensor)) is not None]
    weights = [(tensor, about) for tensor, about in known if isinstance(about, Weights)]
    if weights:
        (tensor, first), *rest = weights
        is_joined = any(other.softmax is not first.softmax for _, other in rest)
        for result, about in weights_after(first, tensor, call, is_joined=is_joined):
            follower.note(result, about)
        return
    scores = [(tensor, about) for tensor, about in known if isinstance(about, Scores)]
    if scores:
        tensor, of = next((pair for pair in scores if pair[1].is_plain), scores[0])
        for result, about in scores_after(of, tensor, call):
            follower.note(result, about)
    elif call.function in SCALINGS and (factors := factors_of_outer(call)) is not None:
        if known:
            carry_projected(follower, known, call)
        about = follower.of(call.result)
        if about is not OF_PARAMETERS:
            about = about if isinstance(about, Projected) else Projected(frozenset())
            follower.note(call.result, Outer(about.sources, about.parents, about.features, factors=factors))
    elif known:
        carry_projected(follower, known, call)
    elif call.function in VIEWING and call.arguments and isinstance(call.arguments[0], nn.Parameter):
        follower.note(call.result, OF_PARAMETERS)


def carry_projected(follower: Follower, known: Sequence[tuple[Tensor, Followed]], call: TorchCall) -> None:
    parts = [about for _, about in known if isinstance(about, Projected)]
    if not parts:
        return
    merged = merged_projections(parts)
    for result in call.result if isinstance(call.result, tuple | list) else (call.result,):
        if isinstance(result, Tensor):
            if merged is OF_PARAMETERS:
                follower.note(result, merged)
            else:
                features = carried_features(merged.features, known[0][0], call, result)
                follower.note(result, Projected(merged.sources, merged.parents, features, merged.made))


def change(follower: Follower, call: TorchCall) -> None:
    """Numbers were changed one by one: what is known holds for the result."""
    tensor, result = call.get(0, "input", "self"), call.result
    known = follower.of(tensor)
    if type(known) is not Projected:
        carry(follower, call)
    elif isinstance(tensor, Tensor) and isinstance(result, Tensor) and tensor.stride() == result.stride():
        follower.note(result, known)


def normalise(follower: Follower, call: TorchCall) -> None:
    """A norm of a tensor is made of it; one over heads mixes them."""
    tensor = call.get(0, "input")
    if not isinstance(tensor, Tensor):
        return
    known = follower.of(tensor)
    if isinstance(known, Projected):
        carry(follower, call)
    elif isinstance(known, Scores | Weights) and not (isinstance(known, Weights) and known.is_value):
        follower.note(call.result, known.mixed(known.axes))
    elif not isinstance(known, Blank):
        of_parameters = follower.is_of_parameters(tensor)
        follower.note(call.result, OF_PARAMETERS if of_parameters else Projected(follower.source(tensor)))


def overwrite(follower: Follower, call: TorchCall) -> None:
    """Entries of a tensor were set: of a new one, to what a projection gave."""
    tensor, known = call.get(0), follower.of(call.get(0))
    given = follower.of(call.get(1 if call.function in COPIES else 2, "src"))
    if isinstance(known, Blank):
        known = known.like
        follower.note(tensor, known.mixed(known.axes))
    elif isinstance(given, Weights) and call.function in COPIES and _are_alike(tensor, call.get(1, "src")):
        follower.note(tensor, given)
    elif isinstance(known, Weights):
        follower.note(tensor, known.mixed(known.axes))
    elif isinstance(given, Projected) and (known is None or isinstance(known, Projected)):
        parts = [given] if known is None else [known, given]
        merged = replace(merged_projections(parts), features=None)
        follower.note(tensor, merged)
        if call.function in COPIES and isinstance(tensor, Tensor):
            follower.note(tensor._base, merged)


def blank(follower: Follower, call: TorchCall) -> None:
    """A new tensor that is as large as another."""
    known = follower.of(call.get(0, "input", "self"))
    if isinstance(known, Scores | Weights):
        follower.note(call.result, Blank(known))


def pick(follower: Follower, call: TorchCall) -> None:
    """The largest scores or weights, or those at some places: which keys they are of is not followed."""
    tensor = call.get(0, "input", "self")
    known = follower.of(tensor)
    picked = call.result[0] if isinstance(call.result, tuple) else call.result
    if isinstance(known, Projected) and isinstance(tensor, Tensor):
        features = feature_axes(tensor, known.features)
        if features is not None and picked_axis(call, tensor) in features:
            follower.note(picked, Projected(known.sources, known.parents))  # of experts, as by a router
        return
    if not (isinstance(known, Scores | Weights) and isinstance(tensor, Tensor)):
        return
    if isinstance(picked, Tensor) and picked.ndim == tensor.ndim:
        axes = tuple(
            parts if size == before else whole_axis(parts[0].label, size) if parts else ()
            for parts, size, before in zip(known.axes, picked.shape, tensor.shape, strict=True)
        )
        name = getattr(call.function, "__name__", "")
        follower.note(picked, replace(known, axes=axes, unread=known.unread or PICKED.format(name)))


def scatter(follower: Follower, call: TorchCall) -> None:
    """Entries of a tensor were set by their places: scores, weights, or some of them in a new tensor."""
    known = follower.of(call.get(0, "input", "self"))
    if type(known) is Projected:
        carry(follower, call)
    if isinstance(known, Blank):
        known = known.like
        if isinstance(known, Weights):
            # What was written to is a tensor of its own.
            known = replace(known, softmax=replace(known.softmax, is_heard=False))
    if isinstance(known, Scores | Weights):
        follower.note(call.result, known.mixed(known.axes))


def _are_alike(tensor: object, other: object) -> bool:
    return isinstance(tensor, Tensor) and isinstance(other, Tensor) and tensor.shape == other.shape
