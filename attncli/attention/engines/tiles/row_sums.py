"""Running sums over the tiles of a block of queries: what softmax and its statistics need, and no more."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.scores import LOWEST, QueryBlock
from attncli.attention.engines.tiles.top_keys import TopKeys

SAFE_BITS = 48.0
"""Below this bound 2**(2 * score), summed over 2**27 keys, fits float32 without a reference."""
HEADROOM_BITS = 16.0
"""How far scores may outgrow the reference before the sums are rescaled."""


class RowSums:
    """Sums of e = 2**(s - reference) over the keys seen so far, s being centred scores in bits.

    Online softmax (Milakov and Gimelshein, arXiv:1805.02867) keeps the reference at the running maximum
    and rescales the sums when it grows. Here the reference stays 0 where no score can be large, and
    otherwise follows the maximum lazily; either way the sums carry everything:

        logsumexp  log2(sum e) + reference
        entropy    log2(sum e) - sum e (s - reference) / sum e      (bits)
        sum p^2    sum e^2 / (sum e)^2
        output     sum e value / sum e; distance likewise, with |position - j| for the value

    Sums over a tile are taken in the type of the scores, sums over tiles in float64.
    """

    def __init__(self, block: QueryBlock, value_dim: int, top_k: int, bounded: bool) -> None:
        query = block.query
        num_queries = len(query)
        self.block = block
        self.bounded = bounded
        self.here = block.position.to(query.dtype)
        self.first, self.last = self.here[0], self.here[-1]
        self.reference = query.new_full((num_queries,), 0.0 if bounded else LOWEST / 10)
        self.top = TopKeys(num_queries, top_k, LOWEST, like=query)
        self.largest = query.new_full((num_queries,), LOWEST)
        self.smallest = query.new_full((num_queries,), -LOWEST)
        self.output = query.new_zeros(num_queries, value_dim)
        self.scores = torch.zeros(2, num_queries, dtype=torch.float64, device=query.device)
        self.sums = torch.zeros(4, num_queries, dtype=torch.float64, device=query.device)
        self.score, self.score_square = self.scores
        self.total, self.total_square, self.weighted, self.distance = self.sums

    def add_scores(
        self,
        scores: Float[Tensor, "query key"],
        hidden: Bool[Tensor, "query key"] | None,
        first_rank: int,
        buffer: Float[Tensor, " size"],
    ) -> None:
        """Moments, extremes and top keys of a tile; hidden scores become LOWEST, in place."""
        if hidden is not None:
            scores.masked_fill_(hidden, 0.0)
        self.score += scores.sum(-1)
        self.score_square += torch.linalg.vector_norm(scores, dim=-1).square_()
        if hidden is not None:
            scores.masked_fill_(hidden, -LOWEST)
        torch.minimum(self.smallest, scores.amin(-1), out=self.smallest)
        if hidden is not None:
            scores.masked_fill_(hidden, LOWEST)
        torch.maximum(self.largest, self.top.add(scores, first_rank, buffer), out=self.largest)

    def add_weights(
        self,
        scores: Float[Tensor, "query key"],
        value: Float[Tensor, "key value_dim"],
        position: Int[Tensor, " key"],
        buffer: Float[Tensor, " size"],
    ) -> None:
        """Sums over the weights of a tile. Destroys `scores`; call `add_scores` first."""
        place = position.to(scores.dtype)
        if not self.bounded:
            self._raise_reference()
            scores.sub_(self.reference[:, None])
        weights = torch.exp2(scores, out=buffer[: scores.numel()].view_as(scores))
        self.output.addmm_(weights, value)
        total = weights.sum(-1)
        self.total += total
        self.weighted += scores.mul_(weights).sum(-1)
        self.total_square += torch.linalg.vector_norm(weights, dim=-1).square_()
        self.distance += self._distance(weights, total, place, buffer=scores)

    def _raise_reference(self) -> None:
        if not (self.largest > self.reference + HEADROOM_BITS).any():
            return
        reference = torch.maximum(self.reference, self.largest)
        step = (self.reference - reference).double()
        factor = torch.exp2(step)
        self.weighted += step * self.total
        self.total_square *= factor
        self.sums *= factor
        self.output *= factor[:, None].to(self.output.dtype)
        self.reference = reference

    def _distance(
        self,
        weights: Float[Tensor, "query key"],
        total: Float[Tensor, " query"],
        place: Float[Tensor, " key"],
        buffer: Float[Tensor, "query key"],
    ) -> Float[Tensor, " query"]:
        """sum_j e_j |i - j|. For keys on one side of the block this is a product with one column:

        the way from key to block, plus the way within the block times the sum of the weights. Neither is
        negative, so no digits cancel as they would in i sum e - sum e j.
        """
        if self.first >= place[-1]:
            return (weights @ (self.first - place)).addcmul_(total, self.here - self.first)
        if self.last <= place[0]:
            return (weights @ (place - self.last)).addcmul_(total, self.last - self.here)
        across = torch.sub(self.here[:, None], place, out=buffer)
        return across.abs_().mul_(weights).sum(-1)
