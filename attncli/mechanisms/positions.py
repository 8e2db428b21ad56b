"""What attention may know of positions: rotary angles, ALiBi's penalty, and a learned relative bias."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def rotary_angles(num_tokens: int, dim: int, *, base: float) -> Float[Tensor, "token pair"]:
    """position * base^(-2n/dim), in radians, for positions 0, 1, ... and pairs n = 0 ... dim/2 - 1.

    In float64: a float32 angle of position 100,000 is off by hundredths. Su et al. 2021, RoFormer
    (2104.09864), equation 15.
    """
    positions = torch.arange(num_tokens, dtype=torch.float64)
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return positions.unsqueeze(-1) * speeds


def rotate(vectors: Float[Tensor, "*batch token dim"], *, base: float) -> Float[Tensor, "*batch token dim"]:
    """Dimensions n and n + dim/2 of the vector at position t, as a point in a plane, rotated by t's angle.

    Rotation keeps lengths, and the product of two rotated vectors depends on their positions only through
    i - j. `dim` is even. Pairs are those of GPT-NeoX and Llama; RoFormer pairs neighbours, 2n and 2n + 1, and
    only the order of dimensions differs.
    """
    angles = rotary_angles(vectors.shape[-2], vectors.shape[-1], base=base)
    cos, sin = (part.to(vectors) for part in (angles.cos(), angles.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def alibi_slopes(num_heads: int) -> Float[Tensor, " head"]:
    """2^(-8/n), 2^(-16/n), ..., 2^-8 where the number of heads n is a power of two.

    Otherwise those of the power of two below, then every second one of the power of two above, as in the
    authors' code. Press, Smith & Lewis 2022, Train short, test long (2108.12409), section 3.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    own = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-4 * i / below) for i in range(1, 2 * below, 2)]
    return torch.tensor([*own, *between][:num_heads], dtype=torch.float64)


def alibi_bias(num_heads: int, num_tokens: int) -> Float[Tensor, "head token token"]:
    """-slope |i - j|: the paper's for keys in the past, the same for keys ahead where nothing masks them."""
    positions = torch.arange(num_tokens, dtype=torch.float64)
    distances = (positions.unsqueeze(-1) - positions).abs()
    return -alibi_slopes(num_heads).view(-1, 1, 1) * distances


def distance_buckets(
    offsets: Int[Tensor, "*offsets"], *, num_buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, "*offsets"]:
    """The bucket of each key's offset j - i from its query.

    Of n buckets (half of num_buckets for keys behind, the other half for keys ahead; with causal all for
    keys behind) the first n/2 hold one distance each, the others grow logarithmically; the last takes
    every distance from max_distance on. max_distance is greater than n/2, n at least 2. Raffel et al. 2020,
    T5 (1910.10683), section 2.1; after Shaw, Uszkoreit & Vaswani 2018 (1803.02155).
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
    """table[head, bucket of j - i], which a model learns, for query i and key j of one text."""
    positions = torch.arange(num_tokens, device=table.device)
    offsets = positions - positions.unsqueeze(-1)
    num_buckets = table.shape[-1]
    buckets = distance_buckets(offsets, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    return table[:, buckets]
