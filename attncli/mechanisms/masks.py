"""Masks: True where a query may attend to a key."""

import torch
from jaxtyping import Bool
from torch import Tensor

from attncli.mechanisms.visibility import Visibility


def causal_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Query i sees key j where j <= i + num_keys - num_queries: the last query sees the last key.

    With as many keys as queries this is the lower triangle of Vaswani et al. 2017, section 3.2.3.
    """
    return torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)


def full_mask(num_queries: int, num_keys: int) -> Bool[Tensor, "query key"]:
    """Every query sees every key."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool)


def visible_keys(
    num_queries: int, num_keys: int, *, causal: bool = False, window: int | None = None
) -> Bool[Tensor, "query key"]:
    """The whole matrix of a `Visibility`: query i sees key j where |i - j| < window, and j <= i with causal.

    Sliding windows: Beltagy, Peters & Cohan 2020, Longformer (2004.05150); with causal the last `window` keys
    as in Mistral 7B, Jiang et al. 2023 (2310.06825).
    """
    queries, keys = torch.arange(num_queries), torch.arange(num_keys)
    return Visibility(num_queries, num_keys, causal=causal, window=window).block(queries, keys)
