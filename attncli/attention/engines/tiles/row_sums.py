"""Running sums over the tiles of a block of queries: what softmax and its statistics need, and no more."""

from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.scores import LOWEST, QueryBlock

SAFE_BITS = 48.0
"""Below this bound 2**(2 * score), summed over 2**27 keys, fits float32 without a reference."""
HEADROOM_BITS = 16.0
"""How far scores may outgrow the reference before the sums are rescaled."""


@dataclass(frozen=True)
class ScoreTile:
    """Centred scores, in bits, of a block's queries with some kept keys; `buffer` has room for as many."""

    block: QueryBlock
    scores: Float[Tensor, "query key"]
    keys: slice
    seen_by_all: bool
    value: Float[Tensor, "key value_dim"]
    position: Float[Tensor, " key"]
    buffer: Float[Tensor, " size"]


@dataclass(frozen=True)
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

    bounded: bool
    reference: Float[Tensor, " query"]
    largest: Float[Tensor, " query"]
    smallest: Float[Tensor, " query"]
    score: Float[Tensor, " query"]
    score_square: Float[Tensor, " query"]
    total: Float[Tensor, " query"]
    total_square: Float[Tensor, " query"]
    weighted: Float[Tensor, " query"]
    distance: Float[Tensor, " query"]
    output: Float[Tensor, "query value_dim"]
    top_scores: Float[Tensor, "query top_k"]
    top_ranks: Int[Tensor, "query top_k"]

    def of(self, rows: slice) -> "RowSums":
        """Those of some queries, in the same memory."""
        tensors = (getattr(self, field.name)[rows] for field in fields(self)[1:])
        return RowSums(self.bounded, *tensors)


def no_sums(output: Float[Tensor, "query value_dim"], top_k: int, *, bounded: bool) -> RowSums:
    """The sums before any key was seen; those of the output, zeros, are summed up in their place."""
    like, num_queries = output, len(output)
    lowest = like.new_full((num_queries,), LOWEST)
    score, square, total, total_square, weighted, distance = torch.zeros(
        6, num_queries, dtype=torch.float64, device=like.device
    )
    return RowSums(
        bounded=bounded,
        reference=like.new_full((num_queries,), 0.0 if bounded else LOWEST / 10),
        largest=lowest,
        smallest=-lowest,
        score=score,
        score_square=square,
        total=total,
        total_square=total_square,
        weighted=weighted,
        distance=distance,
        output=output,
        top_scores=like.new_full((num_queries, top_k), LOWEST),
        top_ranks=torch.full((num_queries, top_k), -1, device=like.device),
    )
