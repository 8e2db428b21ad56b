"""Relative position bias: a learned number for each head and bucket of distances, added to the scores.

Raffel et al. 2020, T5 (1910.10683), section 2.1; after Shaw, Uszkoreit & Vaswani 2018 (1803.02155).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def distance_buckets(
    offsets: Int[Tensor, "*offsets"], *, num_buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, "*offsets"]:
    """The bucket of each key's offset j - i from its query.

    Of n buckets (half of num_buckets for keys behind, the other half for keys ahead; with causal all for
    keys behind) the first n/2 hold one distance each, the others grow logarithmically; the last takes
    every distance from max_distance on. max_distance is greater than n/2, n at least 2.
    """
    n = num_buckets if causal else num_buckets // 2
    distances = (-offsets).clamp(min=0) if causal else offsets.abs()
    ahead = n * (offsets > 0) * (not causal)
    exact = n // 2
    share = (distances.clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    grown = exact + (share * (n - exact)).long()
    return ahead + torch.where(distances < exact, distances, grown.clamp(max=n - 1))


def relative_bias(
    table: Float[Tensor, "head bucket"], num_tokens: int, *, max_distance: int, causal: bool
) -> Float[Tensor, "head token token"]:
    """table[head, bucket of j - i] for query i and key j of one text."""
    positions = torch.arange(num_tokens, device=table.device)
    offsets = positions - positions.unsqueeze(-1)
    num_buckets = table.shape[-1]
    buckets = distance_buckets(offsets, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    return table[:, buckets]
