"""Differential attention: the difference of two softmaxes cancels what both attend to.

Ye et al. 2024, Differential Transformer (2410.05258), section 2.1. The paper's normalisation of each head's
output, a part of its multi-head layer, is not here.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.mechanisms.scaled_dot_product import Attention, attend
from attncli.mechanisms.score_rules import PLAIN, ScoreRules


@dataclass(frozen=True)
class DifferentialAttention:
    """The attention of each half of query and key; weights = first - lambda second, and their output."""

    first: Attention
    second: Attention
    weights: Float[Tensor, "*batch query key"]
    output: Float[Tensor, "*batch query value_dim"]


def differential_lambda(vectors: Float[Tensor, "4 dim"], lambda_init: float) -> float:
    """exp(q1 . k1) - exp(q2 . k2) + lambda_init for the learned vectors q1, k1, q2, k2 (equation 2)."""
    query1, key1, query2, key2 = vectors.double()
    return float((query1 @ key1).exp() - (query2 @ key2).exp()) + lambda_init


def attend_differentially(
    query: Float[Tensor, "*batch query dim"],
    key: Float[Tensor, "*batch key dim"],
    value: Float[Tensor, "*batch key value_dim"],
    mask: Bool[Tensor, "query key"],
    *,
    factor: float,
    scale: str | float = "sqrt",
    rules: ScoreRules = PLAIN,
) -> DifferentialAttention:
    """(softmax(q1 k1^T scale) - factor softmax(q2 k2^T scale)) value (equation 1).

    q1 and q2 are the halves of query, k1 and k2 those of key: `dim` is even, and scale counts half of it. A
    row of weights sums to 1 - factor and may have negative entries.
    """
    halves = zip(query.chunk(2, dim=-1), key.chunk(2, dim=-1), strict=True)
    first, second = (attend(q, k, value, mask, scale=scale, rules=rules) for q, k in halves)
    weights = first.weights - factor * second.weights
    return DifferentialAttention(first, second, weights, weights @ value)


def in_halves(vectors: Float[Tensor, "*batch token dim"]) -> Float[Tensor, "*batch 2 token half"]:
    """The two halves of each vector, as if they were heads."""
    return torch.stack(vectors.chunk(2, dim=-1), dim=-3)


def joined_halves(halves: Float[Tensor, "*batch 2 token half"]) -> Float[Tensor, "*batch token dim"]:
    """Back from `in_halves`."""
    return torch.cat(halves.unbind(dim=-3), dim=-1)
