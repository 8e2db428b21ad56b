"""The k largest scores of each row, kept while the row passes by in tiles."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.scores import LOWEST

GROUPS_PER_KEY = 64
"""torch.topk finds k of n in one sweep from n = 64 k on; below that it partitions, which takes longer."""


def keep_top(
    top_scores: Float[Tensor, "query top_k"],
    top_ranks: Int[Tensor, "query top_k"],
    scores: Float[Tensor, "query key"],
    first_rank: int,
    room: Float[Tensor, " size"],
) -> Float[Tensor, " query"]:
    """Exact top-k through the maxima of groups of keys, taken into what was found before; gives row maxima.

    The k largest scores lie in the k groups with the largest maxima, since any other score has k group
    maxima at or above it. Maxima cost a fraction of `topk`, which then sees few scores. A tile is
    searched only in rows where it beats the k-th score so far; of n tiles, about k ln n do.

    `room` holds a tile.
    """
    num_queries, top_k = top_scores.shape
    if top_k == 0:
        return scores.amax(-1)
    num_members = 1 << (scores.shape[1] // (GROUPS_PER_KEY * top_k) | 1).bit_length() - 1
    padding = -scores.shape[1] % num_members
    if padding:
        scores = F.pad(scores, (0, padding), value=LOWEST)
    num_groups = scores.shape[1] // num_members  # key = member * num_groups + group
    maxima = scores
    if num_members > 1:
        maxima, room = _taken(room, num_queries, num_groups)
        torch.amax(scores.view(-1, num_members, num_groups), 1, out=maxima)
    row_maxima = maxima.amax(-1)
    rows = (row_maxima > top_scores[:, -1]).nonzero()[:, 0]
    if len(rows) < num_queries:
        maxima = torch.index_select(maxima, 0, rows, out=_taken(room, len(rows), num_groups)[0])
    groups = maxima.topk(min(top_k, num_groups), sorted=False).indices
    members = torch.arange(0, scores.shape[1], num_groups, device=scores.device)
    keys = (groups[..., None] + members).flatten(1)
    candidates = torch.cat([top_scores[rows], scores[rows[:, None], keys]], -1)
    ranks = torch.cat([top_ranks[rows], keys + first_rank], -1)
    best = candidates.topk(top_k)
    top_scores[rows] = best.values
    top_ranks[rows] = ranks.gather(-1, best.indices)
    return row_maxima


def _taken(room: Float[Tensor, " size"], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """A matrix from the front of a buffer, and what is left of it."""
    return room[: rows * columns].view(rows, columns), room[rows * columns :]
