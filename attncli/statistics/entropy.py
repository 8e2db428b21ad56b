"""How spread out a row of weights is."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def entropy(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """-sum p ln p, in nats, with 0 ln 0 = 0. Shannon 1948; of attention: Clark et al. 2019 (1906.04341)."""
    terms: Tensor = torch.special.entr(weights)
    return terms.sum(dim=-1)


def normalized_entropy(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """Entropy over ln(number of visible keys): 1 where a row is uniform; NaN where one key is visible."""
    return share_of_most(entropy(weights, visible), visible)


def share_of_most(
    entropies: Float[Tensor, "*batch query"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """Entropies over the most that a row can have, ln(number of visible keys); NaN where one is visible."""
    num_visible = visible.sum(dim=-1)
    return entropies / num_visible.to(entropies.dtype).log().masked_fill(num_visible < 2, torch.nan)
