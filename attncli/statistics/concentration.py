"""How much of a row lies on few keys."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


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
    hidden_last = weights.masked_fill(~visible, -torch.inf)
    ranked, keys = hidden_last.sort(dim=-1, descending=True, stable=True)
    ranked, keys = ranked[..., :k], keys[..., :k]
    hidden = ranked.isneginf()
    return keys.masked_fill(hidden, -1), ranked.masked_fill(hidden, torch.nan)
