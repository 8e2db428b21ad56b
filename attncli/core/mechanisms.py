"""The mechanisms around attention, as pure functions: averages, positions, normalisation, and loops."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.core.layer import AttentionLayer, Computed, Wanted, scale_factors

TokenWeights = Float[Tensor, "token token"]
TokenVectors = Float[Tensor, "*batch token dim"]
TokenMask = Bool[Tensor, "token token"]


def causal_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Query i sees key j if j <= i + num_keys - num_queries: the last query sees the last key.

    With as many keys as queries, this is the lower triangle described in Vaswani et al. 2017, section 3.2.3.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def full_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Every query sees every key."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool)


def average_by_loop(vectors: TokenVectors, mask: TokenMask, *, mean: bool) -> TokenVectors:
    """out[t] = the sum, token by token, of the vectors that t sees, divided by their number for the mean."""
    rows = []
    for visible in mask:
        seen = vectors[..., visible, :]
        rows.append(seen.mean(dim=-2) if mean else seen.sum(dim=-2))
    return torch.stack(rows, dim=-2)


def averaging_weights(mask: TokenMask, *, mean: bool) -> TokenWeights:
    """A matrix with ones where a token is seen; for the mean, each row is divided by its sum."""
    ones = mask.float()
    return ones / ones.sum(dim=-1, keepdim=True) if mean else ones


def softmax_averaging_weights(mask: TokenMask) -> TokenWeights:
    """softmax over scores of zero, or -inf where a token is hidden: the same means, written as attention."""
    scores = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)


def rotary_angles(num_tokens: int, dim: int, *, base: float) -> Float[Tensor, "token pair"]:
    """position * base^(-2n/dim), in radians, for positions 0, 1, ... and pairs n = 0 ... dim/2 - 1.

    Computed in float64, because a float32 angle is off by hundredths at position 100,000. Su et al. 2021,
    RoFormer (2104.09864), equation 15.
    """
    positions = torch.arange(num_tokens, dtype=torch.float64)
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return positions.unsqueeze(-1) * speeds


def rotate(vectors: Float[Tensor, "*batch token dim"], *, base: float) -> Float[Tensor, "*batch token dim"]:
    """Rotate dimensions n and n + dim/2 of the vector at position t, a point in a plane, by the angle of t.

    Rotation keeps lengths, and the product of two rotated vectors depends on their positions only through i -
    j. `dim` must be even. Dimensions are paired as in GPT-NeoX and Llama; RoFormer pairs the neighbours 2n
    and 2n + 1, which changes only the order of dimensions.
    """
    angles = rotary_angles(vectors.shape[-2], vectors.shape[-1], base=base)
    cos, sin = (part.to(vectors) for part in (angles.cos(), angles.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def alibi_slopes(num_heads: int) -> Float[Tensor, " head"]:
    """2^(-8/n), 2^(-16/n), ..., 2^-8 if the number of heads n is a power of two.

    If n is not a power of two, the slopes for the next lower power of two, then every second slope for the
    next higher one, as in the authors' code. Press, Smith & Lewis 2022, Train short, test long (2108.12409),
    section 3.
    """
    below = 2 ** (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    between = [2.0 ** (-4 * i / below) for i in range(1, 2 * below, 2)]
    return torch.tensor([*slopes, *between][:num_heads], dtype=torch.float64)


def alibi_bias(num_heads: int, num_tokens: int) -> Float[Tensor, "head token token"]:
    """-slope |i - j|: the paper's bias for past keys, and the same bias for unmasked future keys."""
    positions = torch.arange(num_tokens, dtype=torch.float64)
    distances = (positions.unsqueeze(-1) - positions).abs()
    return -alibi_slopes(num_heads).view(-1, 1, 1) * distances


def distance_buckets(
    offsets: Int[Tensor, "*offsets"], *, num_buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, "*offsets"]:
    """The bucket of each key's offset j - i from its query.

    Past and future keys have n = num_buckets / 2 buckets each; if causal, past keys have all n = num_buckets.
    The first n/2 buckets hold one distance each; the others grow logarithmically, and the last holds every
    distance from max_distance on. max_distance must be greater than n/2, and n at least 2. Raffel et al.
    2020, T5 (1910.10683), section 2.1; after Shaw, Uszkoreit & Vaswani 2018 (1803.02155).
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
    """table[head, bucket of j - i] for query i and key j of one text; a model learns the table."""
    positions = torch.arange(num_tokens, device=table.device)
    offsets = positions - positions.unsqueeze(-1)
    num_buckets = table.shape[-1]
    buckets = distance_buckets(offsets, num_buckets=num_buckets, max_distance=max_distance, causal=causal)
    return table[:, buckets]


Data = Float[Tensor, "batch feature"]
PerFeature = Float[Tensor, " feature"]


@dataclass(frozen=True)
class BatchNorm:
    """The normalised batch, the running mean and variance after this step, and the output in eval mode."""

    output: Data
    running_mean: PerFeature
    running_variance: PerFeature
    eval_output: Data


def batch_norm(data: Data, *, eps: float, momentum: float, unbiased: bool) -> BatchNorm:
    """(x - mean) / sqrt(variance + eps) for each feature over the batch, with weight 1 and bias 0.

    The running statistics start at mean 0, variance 1 and move by `momentum` toward the batch's mean and its
    unbiased variance (as in torch, whichever variance normalises the batch); evaluation mode normalises with
    the running statistics. Needs at least two examples.
    """
    mean = data.mean(dim=0)
    output = (data - mean) / (data.var(dim=0, correction=int(unbiased)) + eps).sqrt()
    running_mean = momentum * mean
    running_variance = (1 - momentum) + momentum * data.var(dim=0)
    eval_output = (data - running_mean) / (running_variance + eps).sqrt()
    return BatchNorm(output, running_mean, running_variance, eval_output)


def layer_norm(data: Data, *, eps: float, unbiased: bool) -> Data:
    """(x - mean) / sqrt(variance + eps) for each example over its features, with weight 1 and bias 0."""
    mean = data.mean(dim=1, keepdim=True)
    return (data - mean) / (data.var(dim=1, keepdim=True, correction=int(unbiased)) + eps).sqrt()


def rms_norm(data: Float[Tensor, "*batch feature"], *, eps: float) -> Float[Tensor, "*batch feature"]:
    """x / sqrt(mean(x^2) + eps) for each example over its features; no mean is subtracted.

    Applied to each head's query and key: Henry et al. 2020, Query-key normalization (2010.04245); with the
    root mean square as in Qwen3 (2505.09388).
    """
    return data * torch.rsqrt(data.square().mean(dim=-1, keepdim=True) + eps)


def differential_lambda(vectors: Float[Tensor, "4 dim"], lambda_init: float) -> float:
    """exp(q1 . k1) - exp(q2 . k2) + lambda_init for the learned vectors q1, k1, q2, k2.

    Ye et al. 2024, Differential transformer (2410.05258), equation 2.
    """
    query1, key1, query2, key2 = vectors.double()
    return float((query1 @ key1).exp() - (query2 @ key2).exp()) + lambda_init


def attend_differentially(
    layer: AttentionLayer, factor: float, wanted: Wanted
) -> tuple[Computed, Computed, Computed]:
    """Attend with each half of query and key, and subtract `factor` (lambda) times the second result.

    The result for the difference has the wanted row and key statistics, the weights and the output. Ye et al.
    2024, Differential transformer (2410.05258), equation 1.
    """
    from attncli.core.engines import attend
    from attncli.core.row_tiles import GivenWeights

    halves = zip(layer.query.chunk(2, dim=-1), layer.key.chunk(2, dim=-1), strict=True)
    first, second = (
        attend(replace(layer, query=query, key=key), Wanted(weights=True, scores=True))
        for query, key in halves
    )
    assert first.weights is not None and second.weights is not None
    weights = first.weights - factor * second.weights
    difference = attend(GivenWeights(weights, layer.visibility.whole(layer.query.device)), wanted)
    return first, second, replace(difference, weights=weights, output=weights @ layer.expanded()[1])


def attend_by_loop(
    vectors: Float[Tensor, "*batch token dim"],
    mask: Bool[Tensor, "token token"],
    *,
    scale: str | float = "sqrt",
    softmax: bool = True,
) -> Float[Tensor, "*batch token dim"]:
    """Return the output of unprojected self-attention, with one dot product and one accumulation per cell.

    These are the loops that the matrix products stand for: Bloem 2019, Transformers from scratch.
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
