"""Batch, layer and RMS normalisation of (batch, feature) data, by biased or unbiased variance.

Ioffe & Szegedy 2015 (1502.03167), Ba, Kiros & Hinton 2016 (1607.06450), Zhang & Sennrich 2019 (1910.07467).
`unbiased` divides squared deviations by n - 1, as Karpathy's lesson does; torch's own layers divide by n.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Data = Float[Tensor, "batch feature"]
PerFeature = Float[Tensor, " feature"]


@dataclass(frozen=True)
class BatchNorm:
    """The normalised batch, the running mean and variance after this step, and the eval mode's output."""

    output: Data
    running_mean: PerFeature
    running_variance: PerFeature
    eval_output: Data


def batch_norm(data: Data, *, eps: float, momentum: float, unbiased: bool) -> BatchNorm:
    """(x - mean) / sqrt(variance + eps) for each feature over the batch, weight 1 and bias 0.

    The running statistics start at mean 0, variance 1 and move by `momentum` toward the batch's mean and its
    unbiased variance (in torch, too, whatever divides the batch); the eval mode normalises with them. At
    least two examples.
    """
    mean = data.mean(dim=0)
    output = (data - mean) / (data.var(dim=0, correction=int(unbiased)) + eps).sqrt()
    running_mean = momentum * mean
    running_variance = (1 - momentum) + momentum * data.var(dim=0)
    eval_output = (data - running_mean) / (running_variance + eps).sqrt()
    return BatchNorm(output, running_mean, running_variance, eval_output)


def layer_norm(data: Data, *, eps: float, unbiased: bool) -> Data:
    """(x - mean) / sqrt(variance + eps) for each example over its features, weight 1 and bias 0."""
    mean = data.mean(dim=1, keepdim=True)
    return (data - mean) / (data.var(dim=1, keepdim=True, correction=int(unbiased)) + eps).sqrt()


def rms_norm(data: Float[Tensor, "*batch feature"], *, eps: float) -> Float[Tensor, "*batch feature"]:
    """x / sqrt(mean(x^2) + eps) for each example over its features; no mean is subtracted.

    Of each head's query and key: Henry et al. 2020, Query-key normalization (2010.04245); with the root mean
    square as in Qwen3 (2505.09388).
    """
    return data * torch.rsqrt(data.square().mean(dim=-1, keepdim=True) + eps)
