"""Scaled dot-product attention with every intermediate kept. Vaswani et al. 2017 (1706.03762), equation 1."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.mechanisms.score_rules import PLAIN, ScoreRules


@dataclass(frozen=True)
class Attention:
    """Scores (query . key), scaled scores as the softmax takes them, weights, and output = weights @ value.

    Hidden scores are -inf.
    """

    scores: Float[Tensor, "*batch query key"]
    scaled_scores: Float[Tensor, "*batch query key"]
    weights: Float[Tensor, "*batch query key"]
    output: Float[Tensor, "*batch query value_dim"]


def scale_factors(scale: str | float, head_dim: int) -> tuple[float, float]:
    """The factor on query and key each, and the factor on their product.

    sqrt: 1/sqrt(head_dim) on the product; fourth-root: head_dim^-1/4 on each, the same value with smaller
    intermediates; none; or a number on the product.
    """
    if isinstance(scale, str):
        return {
            "sqrt": (1.0, head_dim**-0.5),
            "fourth-root": (head_dim**-0.25, 1.0),
            "none": (1.0, 1.0),
        }[scale]
    return 1.0, scale


def attend(
    query: Float[Tensor, "*batch query dim"],
    key: Float[Tensor, "*batch key dim"],
    value: Float[Tensor, "*batch key value_dim"],
    mask: Bool[Tensor, "query key"],
    *,
    scale: str | float = "sqrt",
    softmax: bool = True,
    rules: ScoreRules = PLAIN,
) -> Attention:
    """softmax(query key^T scale) value, with the hidden entries at -inf before the softmax.

    `rules` change the scaled scores and the softmax. Without softmax the weights are the scaled scores, zero
    where hidden. Every query must see a key.
    """
    each, product = scale_factors(scale, query.shape[-1])
    scores = query @ key.mT
    scaled = (query * each) @ (key * each).mT * product if each != 1.0 else scores * product
    scaled = rules.finished(scaled)
    if mask.all():
        weights = rules.weights(scaled) if softmax else scaled
        return Attention(scores, scaled, weights, weights @ value)
    masked = scaled.masked_fill(~mask, -torch.inf)
    weights = rules.weights(masked) if softmax else scaled.masked_fill(~mask, 0.0)
    return Attention(scores.masked_fill(~mask, -torch.inf), masked, weights, weights @ value)


def attend_by_loop(
    vectors: Float[Tensor, "*batch token dim"],
    mask: Bool[Tensor, "token token"],
    *,
    scale: str | float = "sqrt",
    softmax: bool = True,
) -> Float[Tensor, "*batch token dim"]:
    """The output of unprojected self-attention, one dot product a cell and one accumulation a cell.

    Bloem 2019, Transformers from scratch: the form that the matrix products of `attend` stand for.
    """
    if vectors.dim() > 2:
        outputs = [attend_by_loop(item, mask, scale=scale, softmax=softmax) for item in vectors]
        return torch.stack(outputs)
    each, product = scale_factors(scale, vectors.shape[-1])
    outputs = []
    for i, query in enumerate(vectors):
        seen = [j for j in range(len(vectors)) if mask[i, j]]
        scores = torch.stack([torch.dot(query * each, vectors[j] * each) * product for j in seen])
        weights = scores.softmax(dim=0) if softmax else scores
        output = torch.zeros_like(query)
        for weight, j in zip(weights, seen, strict=True):
            output = output + weight * vectors[j]
        outputs.append(output)
    return torch.stack(outputs)
