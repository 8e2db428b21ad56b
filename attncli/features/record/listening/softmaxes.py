"""Softmaxes of scores, in every form that programs use."""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from attncli.features.record.listening.axis_labels import LABELS, AxisPart, Labelled
from attncli.features.record.listening.before_softmax import softmax_axis
from attncli.features.record.listening.carrying import carry
from attncli.features.record.listening.followed import (
    PER_FEATURE,
    WRONG_AXIS,
    HeardSoftmax,
    Projected,
    Scores,
    Weights,
    over_axis,
)
from attncli.features.record.listening.follower import Follower
from attncli.features.record.listening.torch_calls import TorchCall, feature_axes, unseen


def softmax(follower: Follower, call: TorchCall) -> None:
    """Follow a softmax: if it is over keys, its result is weights."""
    scores, axis = call.get(0, "input", "self"), call.get(1, "dim", "axis")
    facts = follower.find(scores)
    if axis is None and isinstance(scores, Tensor) and call.function is functional.softmax:
        axis = 0 if scores.ndim in (0, 1, 3) else 1  # torch's default axis
    if not isinstance(scores, Tensor) or not isinstance(axis, int) or not scores.ndim:
        return
    axis = axis if axis < 0 else axis - scores.ndim
    if isinstance(facts, Weights) and isinstance(call.result, Tensor):
        follower.note(call.result, facts.mixed(facts.axes))
    elif facts is None and axis == -1 and scores.ndim > 1 and isinstance(call.result, Tensor):
        if not follower.is_parameter(scores):
            share(follower, scores, axis, None, call.result)
    elif isinstance(facts, Scores | Projected) and isinstance(call.result, Tensor):
        share(follower, scores, axis, facts, call.result)


def exponentiate(follower: Follower, call: TorchCall) -> None:
    """Follow exp(scores - logsumexp), which is a softmax (Reformer)."""
    facts, result = follower.find(call.get(0, "input", "self")), call.result
    if not isinstance(facts, Scores):
        return
    carry(follower, call)
    if facts.shifted is not None and isinstance(result, Tensor):
        with unseen():
            axis = softmax_axis(facts, facts.shifted, result)
        if axis is not None:
            share(follower, facts.shifted.before, axis, replace(facts, shifted=None), result)


def share(
    follower: Follower, scores: Tensor, axis: int, facts: Scores | Projected | None, result: Tensor
) -> None:
    """Note `result` as a softmax of scores along an axis; `facts` is None if the scores are not followed."""
    product, query, feature_ratio, unread = None, None, None, None
    if isinstance(facts, Scores):
        product = facts.with_keys_on(axis)
        unread = facts.unread if product is not None else over_axis(WRONG_AXIS, scores, axis)
        product, feature_ratio = product or facts, facts.feature_ratio
        axes, labels, features = facts.axes, facts.labels, facts.features
        query = product.left_tokens[0] if product.left_tokens else None
        key = product.right_tokens[0] if product.right_tokens else None
    else:
        spans = () if facts is None else feature_axes(scores, facts.features)
        if spans is None or axis in spans:
            return  # classes or experts
        if -1 in spans or (axis == -1 and -2 in spans):
            unread = over_axis(PER_FEATURE, scores, axis)
        parts = [[(next(LABELS), *part) for part in sizes] for sizes in follower.axis_sizes(scores)]
        if len(parts[axis]) > 1:
            return
        axes = tuple(
            tuple(AxisPart(label, 1, size) for label, size, _ in axis_parts if size > 1)
            for axis_parts in parts
        )
        labels = tuple(label for axis_parts in parts for label, *_ in axis_parts)
        features = frozenset(
            label for axis_parts in parts for label, _, is_feature in axis_parts if is_feature
        )
        key = parts[axis][0][0]
        feature_ratio = 1 if facts is not None and not features else None
    with unseen():
        pair = Labelled(scores.detach(), axes), Labelled(result.detach(), axes)
        softmax = HeardSoftmax(*pair, product, axis, labels, feature_ratio, is_unfollowed=facts is None)
    key = key if scores.shape[axis] > 1 else None
    follower.note(result, Weights(softmax, axes, query, key, features, unread=unread))
