"""Self-attention without projections as a learner writes it first: loops over tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.mechanisms.scaling import scale_factors


def attend_by_loop(
    vectors: Float[Tensor, "*batch token dim"],
    mask: Bool[Tensor, "token token"],
    *,
    scale: str | float = "sqrt",
    softmax: bool = True,
) -> Float[Tensor, "*batch token dim"]:
    """The output of unprojected self-attention, one dot product a cell and one accumulation a cell.

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
