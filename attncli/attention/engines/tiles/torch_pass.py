"""A tile taken into the running sums of its rows, by torch: on any device, in any type."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attncli.attention.engines.tiles.row_sums import HEADROOM_BITS, RowSums, ScoreTile
from attncli.attention.engines.tiles.scores import LOWEST
from attncli.attention.engines.tiles.top_keys import keep_top


def add_tile(sums: RowSums, tile: ScoreTile) -> None:
    """Moments and extremes of the scores, then sums over the weights. Destroys the scores."""
    _add_scores(sums, tile)
    _add_weights(sums, tile)


def add_columns(
    tile: ScoreTile,
    rows: slice,
    reference: Float[Tensor, " query"],
    inverse: Float[Tensor, " query"],
    mass: Float[Tensor, " key"],
    largest: Float[Tensor, " key"],
) -> None:
    """The weights 2^(score - reference) * inverse of some rows, taken into sum and largest of each column.

    Destroys the scores of these rows.
    """
    weights = tile.scores[rows].sub_(reference[:, None]).exp2_().mul_(inverse[:, None])
    hidden = _hidden(tile)
    if hidden is not None:
        weights.masked_fill_(hidden[rows], 0.0)
    mass += weights.sum(0)
    torch.maximum(largest, weights.amax(0), out=largest)


def _hidden(tile: ScoreTile) -> Bool[Tensor, "query key"] | None:
    if tile.seen_by_all:
        return None
    ranks = torch.arange(tile.keys.start, tile.keys.stop, device=tile.scores.device)
    return tile.block.interval.hides(ranks)


def _add_scores(sums: RowSums, tile: ScoreTile) -> None:
    """Hidden scores become LOWEST, in place."""
    scores, hidden = tile.scores, _hidden(tile)
    if hidden is not None:
        scores.masked_fill_(hidden, 0.0)
    sums.score.add_(scores.sum(-1))
    sums.score_square.add_(torch.linalg.vector_norm(scores, dim=-1).square_())
    if hidden is not None:
        scores.masked_fill_(hidden, -LOWEST)
    torch.minimum(sums.smallest, scores.amin(-1), out=sums.smallest)
    if hidden is not None:
        scores.masked_fill_(hidden, LOWEST)
    highest = keep_top(sums.top_scores, sums.top_ranks, scores, tile.keys.start, tile.buffer)
    torch.maximum(sums.largest, highest, out=sums.largest)


def _add_weights(sums: RowSums, tile: ScoreTile) -> None:
    scores = tile.scores
    if not sums.bounded:
        _raise_reference(sums)
        scores.sub_(sums.reference[:, None])
    weights = torch.exp2(scores, out=tile.buffer[: scores.numel()].view_as(scores))
    sums.output.addmm_(weights, tile.value)
    total = weights.sum(-1)
    sums.total.add_(total)
    sums.weighted.add_(scores.mul_(weights).sum(-1))
    sums.total_square.add_(torch.linalg.vector_norm(weights, dim=-1).square_())
    sums.distance.add_(_distance(tile, weights, total))


def _raise_reference(sums: RowSums) -> None:
    if not (sums.largest > sums.reference + HEADROOM_BITS).any():
        return
    reference = torch.maximum(sums.reference, sums.largest)
    step = (sums.reference - reference).double()
    factor = torch.exp2(step)
    sums.weighted.addcmul_(step, sums.total)
    for of_row in (sums.total, sums.weighted, sums.distance):
        of_row *= factor
    sums.total_square.mul_(factor).mul_(factor)
    sums.output.mul_(factor[:, None].to(sums.output.dtype))
    sums.reference.copy_(reference)


def _distance(
    tile: ScoreTile, weights: Float[Tensor, "query key"], total: Float[Tensor, " query"]
) -> Float[Tensor, " query"]:
    """sum_j e_j |i - j|. For keys on one side of the block this is a product with one column:

    the way from key to block, plus the way within the block times the sum of the weights. Neither is
    negative, so no digits cancel as they would in i sum e - sum e j. Destroys the scores.
    """
    here, place = tile.block.here, tile.position
    if here[0] >= place[-1]:
        return (weights @ (here[0] - place)).addcmul_(total, here - here[0])
    if here[-1] <= place[0]:
        return (weights @ (place - here[-1])).addcmul_(total, here[-1] - here)
    across = torch.sub(here[:, None], place, out=tile.scores)
    return across.abs_().mul_(weights).sum(-1)
