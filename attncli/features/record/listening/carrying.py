"""Functions whose result is the same kind of tensor as their argument: scores, weights or a projection."""

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
from attncli.features.record.listening.origins import PARAMETER_VIEW
from attncli.features.record.listening.torch_calls import (
    COPIES,
    VIEWING,
    TorchCall,
    carried_features,
    feature_axes,
    outer_factors,
    picked_axis,
)
from attncli.models.torch_functions import SCALINGS


def carry(follower: Follower, call: TorchCall) -> None:
    """Apply the facts about an argument to the result, adjusted for how the function changes the tensor."""
    facts = [(tensor, about) for tensor in call.tensors() if (about := follower.find(tensor)) is not None]
    weights = [(tensor, about) for tensor, about in facts if isinstance(about, Weights)]
    if weights:
        (tensor, first), *further = weights
        is_joined = any(each.softmax is not first.softmax for _, each in further)
        for result, about in weights_after(first, tensor, call, is_joined=is_joined):
            follower.note(result, about)
        return
    scores = [(tensor, about) for tensor, about in facts if isinstance(about, Scores)]
    if scores:
        tensor, plainest = next((pair for pair in scores if pair[1].is_plain), scores[0])
        for result, about in scores_after(plainest, tensor, call):
            follower.note(result, about)
    elif call.function in SCALINGS and (factors := outer_factors(call)) is not None:
        if facts:
            carry_projected(follower, facts, call)
        about = follower.find(call.result)
        if about is not PARAMETER_VIEW:
            about = about if isinstance(about, Projected) else Projected(frozenset())
            follower.note(call.result, Outer(about.sources, about.parents, about.features, factors=factors))
    elif facts:
        carry_projected(follower, facts, call)
    elif call.function in VIEWING and call.arguments and isinstance(call.arguments[0], nn.Parameter):
        follower.note(call.result, PARAMETER_VIEW)


def carry_projected(follower: Follower, facts: Sequence[tuple[Tensor, Followed]], call: TorchCall) -> None:
    """Note that the result of a function of projections is made from the tensors behind the projections."""
    parts = [about for _, about in facts if isinstance(about, Projected)]
    if not parts:
        return
    merged = merged_projections(parts)
    for result in call.result if isinstance(call.result, tuple | list) else (call.result,):
        if isinstance(result, Tensor):
            if merged is PARAMETER_VIEW:
                follower.note(result, merged)
            else:
                features = carried_features(merged.features, facts[0][0], call, result)
                follower.note(result, Projected(merged.sources, merged.parents, features, merged.made))


def change(follower: Follower, call: TorchCall) -> None:
    """Follow an elementwise function: the facts about its argument hold for the result."""
    tensor, result = call.get(0, "input", "self"), call.result
    facts = follower.find(tensor)
    if type(facts) is not Projected:
        carry(follower, call)
    elif isinstance(tensor, Tensor) and isinstance(result, Tensor) and tensor.stride() == result.stride():
        follower.note(result, facts)


def normalise(follower: Follower, call: TorchCall) -> None:
    """Follow a norm: its result is made from its argument, and a norm across heads mixes the heads."""
    tensor = call.get(0, "input")
    if not isinstance(tensor, Tensor):
        return
    facts = follower.find(tensor)
    if isinstance(facts, Projected):
        carry(follower, call)
    elif isinstance(facts, Scores | Weights) and not (isinstance(facts, Weights) and facts.is_value):
        follower.note(call.result, facts.mixed(facts.axes))
    elif not isinstance(facts, Blank):
        is_parameter = follower.is_parameter(tensor)
        follower.note(call.result, PARAMETER_VIEW if is_parameter else Projected(follower.source(tensor)))


def overwrite(follower: Follower, call: TorchCall) -> None:
    """Follow an assignment to some entries of a tensor."""
    tensor, facts = call.get(0), follower.find(call.get(0))
    assigned = follower.find(call.get(1 if call.function in COPIES else 2, "src"))
    if isinstance(facts, Blank):
        facts = facts.like
        follower.note(tensor, facts.mixed(facts.axes))
    elif isinstance(assigned, Weights) and call.function in COPIES and _are_alike(tensor, call.get(1, "src")):
        follower.note(tensor, assigned)
    elif isinstance(facts, Weights):
        follower.note(tensor, facts.mixed(facts.axes))
    elif isinstance(assigned, Projected) and (facts is None or isinstance(facts, Projected)):
        parts = [assigned] if facts is None else [facts, assigned]
        merged = replace(merged_projections(parts), features=None)
        follower.note(tensor, merged)
        if call.function in COPIES and isinstance(tensor, Tensor):
            follower.note(tensor._base, merged)


def blank(follower: Follower, call: TorchCall) -> None:
    """Follow the creation of a tensor with the shape of scores or weights."""
    facts = follower.find(call.get(0, "input", "self"))
    if isinstance(facts, Scores | Weights):
        follower.note(call.result, Blank(facts))


def pick(follower: Follower, call: TorchCall) -> None:
    """Follow a selection from scores or weights, such as top-k; afterwards, the keys are unknown."""
    tensor = call.get(0, "input", "self")
    facts = follower.find(tensor)
    picked = call.result[0] if isinstance(call.result, tuple) else call.result
    if isinstance(facts, Projected) and isinstance(tensor, Tensor):
        features = feature_axes(tensor, facts.features)
        if features is not None and picked_axis(call, tensor) in features:
            follower.note(picked, Projected(facts.sources, facts.parents))  # a router that picks experts
        return
    if not (isinstance(facts, Scores | Weights) and isinstance(tensor, Tensor)):
        return
    if isinstance(picked, Tensor) and picked.ndim == tensor.ndim:
        axes = tuple(
            parts if size == before else whole_axis(parts[0].label, size) if parts else ()
            for parts, size, before in zip(facts.axes, picked.shape, tensor.shape, strict=True)
        )
        name = getattr(call.function, "__name__", "")
        follower.note(picked, replace(facts, axes=axes, unread=facts.unread or PICKED.format(name)))


def scatter(follower: Follower, call: TorchCall) -> None:
    """Follow a scatter into scores, into weights, or into a new tensor with the shape of either."""
    facts = follower.find(call.get(0, "input", "self"))
    if type(facts) is Projected:
        carry(follower, call)
    if isinstance(facts, Blank):
        facts = facts.like
        if isinstance(facts, Weights):
            # The target is a separate tensor.
            facts = replace(facts, softmax=replace(facts.softmax, is_heard=False))
    if isinstance(facts, Scores | Weights):
        follower.note(call.result, facts.mixed(facts.axes))


def _are_alike(first: object, second: object) -> bool:
    return isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape
