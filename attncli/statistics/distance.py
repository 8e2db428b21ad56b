"""How far a row of weights looks."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def distance(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"], first_query: int = 0
) -> Float[Tensor, "*batch query"]:
    """sum p |i - j|, in tokens: mean distance from query i to the keys. Vig & Belinkov 2019 (1906.04284).

    The rows may be some of a matrix, from `first_query` on.
    """
    num_queries, num_keys = weights.shape[-2:]
    queries = torch.arange(first_query, first_query + num_queries, device=weights.device).unsqueeze(-1)
    keys = torch.arange(num_keys, device=weights.device)
    return (weights * (queries - keys).abs()).sum(dim=-1)
