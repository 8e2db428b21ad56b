"""How much of a row lies on few keys."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.statistics.rows import Rows

KEYS_A_RANK = 64
"""Below so many keys a rank torch.topk partitions each row, which takes longer than as many maxima."""


def max_weight(rows: Rows) -> Float[Tensor, "*batch query"]:
    """max p: the largest weight of a row."""
    if rows.softmax is None:
        return rows.weights.amax(dim=-1)
    highest, log_totals = rows.softmax.highest, rows.softmax.log_totals
    return (-log_totals if highest is None else highest - log_totals).exp()


def participation(rows: Rows) -> Float[Tensor, "*batch query"]:
    """1 / sum p^2: how many keys share the weight, were it spread evenly (inverse participation ratio)."""
    norms: Tensor = torch.linalg.vector_norm(rows.weights, dim=-1)
    return norms.pow(-2)


def top_keys(ranking: Float[Tensor, "*batch query key"], k: int) -> Int[Tensor, "*batch query rank"]:
    """The places of the k largest entries of each row, largest first and the earlier first among equals.

    -inf marks what has no rank: there, and beyond the number of keys, the place is -1.
    """
    num_keys = ranking.shape[-1]
    flat = ranking.reshape(-1, num_keys)
    if num_keys < KEYS_A_RANK * k:
        return _by_rounds(flat, k).view(*ranking.shape[:-1], k)
    best = flat.topk(min(k + 1, num_keys))
    places = best.indices[:, :k].masked_fill(best.values[:, :k] == -torch.inf, -1)
    # topk takes any of equal entries; a stable sort takes several times as long: those rows alone get it.
    is_tied = (best.values[:, 1:] == best.values[:, :-1]) & (best.values[:, 1:] > -torch.inf)
    tied = is_tied.any(dim=-1).nonzero()[:, 0]
    if len(tied):
        ordered = flat[tied].sort(dim=-1, descending=True, stable=True)
        places[tied] = ordered.indices[:, :k].masked_fill(ordered.values[:, :k] == -torch.inf, -1)
    return places.view(*ranking.shape[:-1], k)


def _by_rounds(rows: Float[Tensor, "row key"], k: int) -> Int[Tensor, "row rank"]:
    """The maximum, k times: it is the first of equal entries."""
    left, places = rows.clone(), torch.full((len(rows), k), -1, device=rows.device)
    for rank in range(min(k, rows.shape[-1])):
        best = left.max(dim=-1, keepdim=True)
        places[:, rank : rank + 1] = best.indices.masked_fill(best.values == -torch.inf, -1)
        left.scatter_(-1, best.indices, -torch.inf)
    return places
