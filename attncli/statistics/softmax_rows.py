"""Rows of weights with their entropy and logsumexp, from one exponential of each score."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LEAST_EXPONENT = -800.0
"""exp of it is 0 in float64, and 0 times it is 0: a hidden score (-inf) adds nothing to an entropy."""


@dataclass(frozen=True)
class SoftmaxRows:
    """p = softmax(s); -sum p ln p in nats; ln sum exp s."""

    weights: Float[Tensor, "*batch query key"]
    entropy: Float[Tensor, "*batch query"]
    logsumexp: Float[Tensor, "*batch query"]


def softmax_rows(scores: Float[Tensor, "*batch query key"]) -> SoftmaxRows:
    """The three of each row, in float64; hidden scores are -inf, and every query sees a key.

    With t = s - max s and Z = sum exp t: p = exp t / Z, and -sum p ln p = ln Z - sum p t, where nothing
    cancels, since t <= 0 <= ln Z: no logarithm of p is needed.
    """
    highest = scores.amax(dim=-1, keepdim=True)
    exponents = scores.sub(highest).clamp_(min=LEAST_EXPONENT)
    weights = exponents.exp()
    totals = weights.sum(dim=-1, keepdim=True)
    weights /= totals
    logarithms = totals.log()
    entropy = logarithms.squeeze(-1) - torch.linalg.vecdot(weights, exponents)
    return SoftmaxRows(weights, entropy, (highest + logarithms).squeeze(-1))
