"""How attention adds up over layers."""

import torch
from jaxtyping import Float
from torch import Tensor


def roll_out(
    rolled: Float[Tensor, "token token"], weights: Float[Tensor, "token token"]
) -> Float[Tensor, "token token"]:
    """(A / 2 + I / 2) rolled, its rows normalised: one more layer on top, A the mean of its heads' weights.

    Started with the identity it says whence each token's content came; I stands for the residual
    connection. Abnar & Zuidema 2020 (2005.00928), section 3.
    """
    mixed = weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    return mixed / mixed.sum(dim=-1, keepdim=True) @ rolled
