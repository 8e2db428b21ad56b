"""How far a row of weights looks."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def distance(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """sum p |i - j|, in tokens: mean distance from query i to the keys. Vig & Belinkov 2019 (1906.04284)."""
    num_queries, num_keys = weights.shape[-2:]
    queries = torch.arange(num_queries, device=weights.device).unsqueeze(-1)
    keys = torch.arange(num_keys, device=weights.device)
    return (weights * (queries - keys).abs()).sum(dim=-1)
