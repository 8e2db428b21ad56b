"""Scaled dot-product attention: the factor on its scores, and the loops that a learner writes first."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def scale_factors(scale: str | float, head_dim: int) -> tuple[float, float]:
    """The factor on query and key each, and the factor on their product.

    sqrt: 1/sqrt(head_dim) on the product; fourth-root: head_dim^-1/4 on each, the same value with smaller
    intermediates; none; or a number on the product. Vaswani et al. 2017 (1706.03762), section 3.2.1.
    """
    if isinstance(scale, str):
        return {
            "sqrt": (1.0, head_dim**-0.5),
            "fourth-root": (head_dim**-0.25, 1.0),
            "none": (1.0, 1.0),
        }[scale]
    return 1.0, scale


def score_factor(scale: str | float, head_dim: int) -> float:
    """What the scale multiplies a score by in total, whatever it is applied to."""
    each, product = scale_factors(scale, head_dim)
    return each * each * product


def attend_by_loop(
    vectors: Float[Tensor, "*batch token dim"],
    mask: Bool[Tensor, "token token"],
    *,
    scale: str | float = "sqrt",
    softmax: bool = True,
) -> Float[Tensor, "*batch token dim"]:
    """The output of unprojected self-attention, with one dot product and one accumulation per cell.

    Bloem 2019, Transformers from scratch: what the matrix products stand for.
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
