"""The k largest scores of each row, kept while the row passes by in tiles."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

NUM_GROUPS = 32


class TopKeys:
    """Exact top-k through group maxima.

    A tile's keys form 32 groups. The k largest scores lie in the k groups with the largest maxima, for
    any score elsewhere has k group maxima at or above it. So only those groups are searched, and only
    in rows where the tile beats the k-th score so far: on random scores, k in the n-th tile of n.
    """

    def __init__(self, num_queries: int, top_k: int, lowest: float, like: Tensor) -> None:
        self.lowest = lowest
        self.scores = like.new_full((num_queries, top_k), lowest)
        self.ranks = torch.full((num_queries, top_k), -1, device=like.device)

    def add(self, scores: Float[Tensor, "query key"], first_rank: int) -> Float[Tensor, " query"]:
        """Take in a tile whose first key has this rank, and return its row maxima."""
        top_k = self.scores.shape[1]
        if top_k == 0:
            return scores.amax(-1)
        padded = F.pad(scores, (0, -scores.shape[1] % NUM_GROUPS), value=self.lowest)
        groups = padded.view(len(scores), -1, NUM_GROUPS)  # query, member, group: key = member * 32 + group
        maxima = groups.amax(1)
        row_maxima = maxima.amax(-1)
        rows = (row_maxima > self.scores[:, -1]).nonzero()
        winners = maxima[rows[:, 0]].topk(min(top_k, NUM_GROUPS), sorted=False).indices
        members = torch.arange(groups.shape[1], device=scores.device)[:, None]
        candidates = groups[rows[..., None], members, winners[:, None]].flatten(1)
        ranks = (first_rank + members * NUM_GROUPS + winners[:, None]).flatten(1)
        self._merge(rows[:, 0], candidates, ranks)
        return row_maxima

    def _merge(
        self, rows: Int[Tensor, " row"], scores: Float[Tensor, "row c"], ranks: Int[Tensor, "row c"]
    ) -> None:
        scores = torch.cat([self.scores[rows], scores], -1)
        best = scores.topk(self.scores.shape[1])
        self.scores[rows] = best.values
        self.ranks[rows] = torch.cat([self.ranks[rows], ranks], -1).gather(-1, best.indices)
