"""Mistakes around the softmax: twice, over the wrong axis, masked too late."""

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.experiments.pitfalls.shown import (
    Shown,
    Start,
    figures_of_both,
    projected_scores,
    weight_on_future,
)
from attncli.mechanisms.averaging import causal_mask, softmax_averaging_weights

AXES = ("query", "key")
Weights = Float[Tensor, "query key"]


def _row_sum_error(weights: Weights) -> Tensor:
    return (weights.sum(dim=-1) - 1).abs().max()


def _column_sum_error(weights: Weights) -> Tensor:
    return (weights.sum(dim=-2) - 1).abs().max()


def softmax_twice(numbers: Start) -> Shown:
    """softmax(softmax(s)) against softmax(s), over masked scores of zero: exp(0) = 1 lets the future in."""
    count = len(numbers.tokens)
    right = softmax_averaging_weights(causal_mask(count, count))
    wrong = right.softmax(dim=-1)
    figures = {"weight_on_future": weight_on_future, "first_row_on_itself": lambda weights: weights[0, 0]}
    return Shown("weights", AXES, wrong, right, *figures_of_both(wrong, right, figures))


def wrong_axis(numbers: Start) -> Shown:
    """softmax over the queries against softmax over the keys."""
    scores = projected_scores(numbers)
    wrong, right = scores.softmax(dim=-2), scores.softmax(dim=-1)
    figures = {"row_sum_error": _row_sum_error, "column_sum_error": _column_sum_error}
    return Shown("weights", AXES, wrong, right, *figures_of_both(wrong, right, figures))


def late_mask(numbers: Start) -> Shown:
    """Zeros after the softmax against -inf before it: the rows lose what the hidden keys took."""
    scores = projected_scores(numbers)
    visible = causal_mask(*scores.shape).to(scores.device)
    wrong = scores.softmax(dim=-1).masked_fill(~visible, 0.0)
    right = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    figures = {
        "smallest_row_sum": lambda weights: weights.sum(dim=-1).min(),
        "weight_on_future": weight_on_future,
    }
    return Shown("weights", AXES, wrong, right, *figures_of_both(wrong, right, figures))
