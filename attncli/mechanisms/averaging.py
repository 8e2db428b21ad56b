"""Masks, and the average of the tokens that a mask shows: three ways to the same numbers.

Attention whose scores are all zero. Karpathy 2023, Let's build GPT: the mathematical trick in self-attention.
A mask is True where a query may attend to a key.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Weights = Float[Tensor, "token token"]
Vectors = Float[Tensor, "*batch token dim"]
Mask = Bool[Tensor, "token token"]


def causal_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Query i sees key j where j <= i + num_keys - num_queries: the last query sees the last key.

    With as many keys as queries this is the lower triangle of Vaswani et al. 2017, section 3.2.3.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def full_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Every query sees every key."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool)


def average_by_loop(vectors: Vectors, mask: Mask, *, mean: bool) -> Vectors:
    """out[t] = sum of the vectors that t sees, over their number for the mean: one token at a time."""
    rows = []
    for visible in mask:
        seen = vectors[..., visible, :]
        rows.append(seen.mean(dim=-2) if mean else seen.sum(dim=-2))
    return torch.stack(rows, dim=-2)


def averaging_weights(mask: Mask, *, mean: bool) -> Weights:
    """A matrix of ones where a token is seen; its rows divided by their sums for the mean."""
    ones = mask.float()
    return ones / ones.sum(dim=-1, keepdim=True) if mean else ones


def softmax_averaging_weights(mask: Mask) -> Weights:
    """softmax over scores of zero, with -inf where a token is hidden: the same means, in attention's form."""
    scores = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    return scores.softmax(dim=-1)
