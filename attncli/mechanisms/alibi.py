"""ALiBi: no positions in the vectors, a penalty on the scores that grows with the distance.

Press, Smith & Lewis 2022, Train short, test long (2108.12409), section 3; slopes for head counts that are no
power of two as in the authors' code.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def alibi_slopes(num_heads: int) -> Float[Tensor, " head"]:
    """2^(-8/n), 2^(-16/n), ..., 2^-8 where the number of heads n is a power of two.

    Otherwise those of the power of two below, then every second one of the power of two above.
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
