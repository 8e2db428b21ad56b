"""How much of a row lies on few keys."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST_ROUNDS = 5
HIDDEN, TAKEN = -1e30, -2e30
"""Below every weight, also of a difference: what a query does not see, and what is ranked already."""


def max_weight(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """max p: the largest weight of a row."""
    return weights.masked_fill(~visible, -torch.inf).amax(dim=-1)


def participation(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"]
) -> Float[Tensor, "*batch query"]:
    """1 / sum p^2: how many keys share the weight, were it spread evenly (inverse participation ratio)."""
    return 1 / weights.square().sum(dim=-1)


def top_keys(
    weights: Float[Tensor, "*batch query key"], visible: Bool[Tensor, "query key"], k: int
) -> tuple[Int[Tensor, "*batch query rank"], Float[Tensor, "*batch query rank"]]:
    """The keys of the k largest weights, largest first and earlier key first among equals, and the weights.

    Where fewer keys are visible the key is -1 and the weight NaN; never more ranks than keys.
    """
    hidden_last = weights.clone() if visible.all() else weights.masked_fill(~visible, HIDDEN)
    ranked, keys = _first_of_ranking(hidden_last, min(k, weights.shape[-1]))
    hidden = ranked <= HIDDEN
    return keys.masked_fill(hidden, -1), ranked.masked_fill(hidden, torch.nan)


def _first_of_ranking(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if k > MOST_ROUNDS:
        ranked, keys = rows.sort(dim=-1, descending=True, stable=True)
        return ranked[..., :k], keys[..., :k]
    rounds = []
    for _ in range(k):  # each takes a tenth of a sort; max gives the first of equal entries
        rounds.append(rows.max(dim=-1, keepdim=True))
        rows.scatter_(-1, rounds[-1].indices, TAKEN)
    return torch.cat([best.values for best in rounds], -1), torch.cat([best.indices for best in rounds], -1)
