"""Softmaxes of scores, however they are written: each gives weights."""

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from attncli.features.record.listening.axis_labels import LABELS, AxisPart, Labelled
from attncli.features.record.listening.before_softmax import axis_of_shares
from attncli.features.record.listening.carrying import carry
from attncli.features.record.listening.followed import (
    OF_FEATURES,
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
    """A softmax over keys gives weights."""
    scores, axis = call.get(0, "input", "self"), call.get(1, "dim", "axis")
    known = follower.of(scores)
    if axis is None and isinstance(scores, Tensor) and call.function is functional.softmax:
        axis = 0 if scores.ndim in (0, 1, 3) else 1  # as torch chooses it
    if not isinstance(scores, Tensor) or not isinstance(axis, int) or not scores.ndim:
        return
    axis = axis if axis < 0 else axis - scores.ndim
    if isinstance(known, Weights) and isinstance(call.result, Tensor):
        follower.note(call.result, known.mixed(known.axes))
    elif known is None and axis == -1 and scores.ndim > 1 and isinstance(call.result, Tensor):
        if not follower.is_of_parameters(scores):
            share(follower, scores, axis, None, call.result)
    elif isinstance(known, Scores | Projected) and isinstance(call.result, Tensor):
        share(follower, scores, axis, known, call.result)


def exponentiate(follower: Follower, call: TorchCall) -> None:
    """The exponential of scores minus the logarithm of their sum is their softmax (Reformer)."""
    known, result = follower.of(call.get(0, "input", "self")), call.result
    if not isinstance(known, Scores):
        return
    carry(follower, call)
    if known.shifted is not None and isinstance(result, Tensor):
        with unseen():
            axis = axis_of_shares(known, known.shifted, result)
        if axis is not None:
            share(follower, known.shifted.before, axis, replace(known, shifted=None), result)


def share(
    follower: Follower, scores: Tensor, axis: int, known: Scores | Projected | None, result: Tensor
) -> None:
    """A softmax of scores along an axis gave `result`; None is known of scores that are not followed."""
    of, query, one_head_of, unread = None, None, None, None
    if isinstance(known, Scores):
        of = known.with_keys_on(axis)
        unread = known.unread if of is not None else over_axis(WRONG_AXIS, scores, axis)
        of, one_head_of = of or known, known.one_head_of
        axes, labels, features = known.axes, known.labels, known.features
        query = of.left_tokens[0] if of.left_tokens else None
        key = of.right_tokens[0] if of.right_tokens else None
    else:
        spans = () if known is None else feature_axes(scores, known.features)
        if spans is None or axis in spans:
            return  # classes, experts
        if -1 in spans or (axis == -1 and -2 in spans):
            unread = over_axis(OF_FEATURES, scores, axis)
        parts = [[(next(LABELS), *part) for part in of_axis] for of_axis in follower.sizes_of_axes(scores)]
        if len(parts[axis]) > 1:
            return
        axes = tuple(
            tuple(AxisPart(label, 1, size) for label, size, _ in of_axis if size > 1) for of_axis in parts
        )
        labels = tuple(label for of_axis in parts for label, *_ in of_axis)
        features = frozenset(label for of_axis in parts for label, _, is_feature in of_axis if is_feature)
        key = parts[axis][0][0]
        one_head_of = 1 if known is not None and not features else None
    with unseen():
        pair = Labelled(scores.detach(), axes), Labelled(result.detach(), axes)
        softmax = HeardSoftmax(*pair, of, axis, labels, one_head_of, is_unfollowed=known is None)
    key = key if scores.shape[axis] > 1 else None
    follower.note(result, Weights(softmax, axes, query, key, features, unread=unread))
