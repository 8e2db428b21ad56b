"""How attention adds up over layers."""

import torch
from jaxtyping import Float
from torch import Tensor


def attention_rollout(layers: list[Float[Tensor, "token token"]]) -> Float[Tensor, "token token"]:
    """prod_l (A_l / 2 + I / 2), the last layer leftmost, A_l the mean over heads: whence a token's content came.

    The identity stands for the residual connection. Abnar & Zuidema 2020 (2005.00928), section 3.
    """
    rolled = torch.eye(len(layers[0]), dtype=layers[0].dtype, device=layers[0].device)
    for weights in layers:
        mixed = (weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)) / 2
        rolled = mixed / mixed.sum(dim=-1, keepdim=True) @ rolled
    return rolled
