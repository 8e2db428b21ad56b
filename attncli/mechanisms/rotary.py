"""Rotary positions: query and key turned by angles that grow with their positions.

Su et al. 2021, RoFormer (2104.09864), equation 15; the pairing is that of GPT-NeoX and Llama.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def rotary_angles(num_tokens: int, dim: int, *, base: float) -> Float[Tensor, "token pair"]:
    """position * base^(-2n/dim), in radians, for positions 0, 1, ... and pairs n = 0 ... dim/2 - 1.

    Computed in float64: a float32 angle of position 100,000 is off by hundredths.
    """
    positions = torch.arange(num_tokens, dtype=torch.float64)
    speeds = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return positions.unsqueeze(-1) * speeds


def rotate(vectors: Float[Tensor, "*batch token dim"], *, base: float) -> Float[Tensor, "*batch token dim"]:
    """Dimensions n and n + dim/2 of the vector at position t, as a point in a plane, turned by t's angle.

    Turning keeps lengths, and a product of two turned vectors depends on their positions through i - j
    alone. `dim` is even. (The paper pairs neighbours, 2n and 2n + 1; only the order of dimensions differs.)
    """
    angles = rotary_angles(vectors.shape[-2], vectors.shape[-1], base=base)
    cos, sin = (part.to(vectors) for part in (angles.cos(), angles.sin()))
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
