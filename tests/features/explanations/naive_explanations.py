"""Naive explanations: loops over float64 copies of what transformers computed."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn


def randomise(model: Any, scale: float) -> None:
    """Give norms and biases values other than 1 and 0, and scale the matrices."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter) * 0.3)
        else:
            parameter.mul_(scale)


def keep_inputs(module: nn.Module, kept: list[Tensor]) -> None:
    module.register_forward_pre_hook(lambda _, given: kept.append(given[0][0].detach().double()))


def keep_outputs(module: nn.Module, kept: list[Tensor]) -> None:
    module.register_forward_hook(lambda *call: kept.append(call[2][0].detach().double()))


def carried_vectors(weights: Tensor, values: Tensor, matrix: Tensor) -> Tensor:
    """Compute the sum over the heads of a v W_O, for each query and key.

    Groups of heads share `values` (key, group, dim); `matrix` is W_O (heads x dim, embed).
    """
    num_heads, count = weights.shape[:2]
    by_head = matrix.view(num_heads, values.shape[-1], -1)
    total = torch.zeros(count, count, by_head.shape[-1], dtype=torch.float64)
    for head, query, key in product(range(num_heads), range(count), range(count)):
        value = values[key, head * values.shape[1] // num_heads]
        total[query, key] += weights[head, query, key].item() * value @ by_head[head]
    return total


def near_rows(parts: Tensor, whole: Tensor) -> Tensor:
    """Compute the rows of ALTI: how close each part (query, key, embed) comes to the whole (query, embed)."""
    sizes = whole.abs().sum(dim=-1, keepdim=True)
    near = (sizes - (whole.unsqueeze(1) - parts).abs().sum(dim=-1)).clamp(min=0)
    return near / near.sum(dim=-1, keepdim=True)


def rolled(matrices: Sequence[Tensor]) -> Tensor:
    """Return the product of the matrices, starting with the last."""
    result = torch.eye(len(matrices[0]), dtype=torch.float64)
    for matrix in matrices:
        result = matrix.detach().double() @ result
    return result


def chefer_rows(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Compute attention x gradient from weights and gradients (1, head, query, key) by layer."""
    eye = torch.eye(weights[0].shape[-1])
    means = [(a * da)[0].clamp(min=0).mean(dim=0) for a, da in zip(weights, gradients, strict=True)]
    return rolled([mean + eye for mean in means])
