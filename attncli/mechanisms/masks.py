"""Masks as whole matrices: True where a query may attend to a key."""

import torch
from jaxtyping import Bool
from torch import Tensor


def causal_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Query i sees key j where j <= i + num_keys - num_queries: the last query sees the last key.

    With as many keys as queries this is the lower triangle of Vaswani et al. 2017, section 3.2.3.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def full_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Every query sees every key."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool)
