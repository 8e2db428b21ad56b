"""From running sums to the row figures of a block of queries, and to the moments of a head's scores."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.streaming.row_sums import RowSums
from attncli.streaming.scores import LOG2_E, LOWEST, Head

LN_2 = math.log(2)


def row_statistics(head: Head, sums: RowSums) -> dict[str, Tensor]:
    """Every row figure of `AttentionStatistics`, by name, for the block that was summed up.

    A sink joins the denominator only: with f the share of the keys, p = f e / sum e, and the entropy
    -sum p ln p is f (H - ln f), H being the entropy of e / sum e.
    """
    block, total = sums.block, sums.total
    visible = block.interval.stop - block.interval.first
    keys_alone = sums.reference + total.log2()
    logsumexp = torch.logaddexp2(keys_alone, head.sink * LOG2_E - block.centre)
    log_share = keys_alone - logsumexp
    share = torch.exp2(log_share)
    entropy = share * (total.log2() - sums.weighted / total - log_share) * LN_2
    entropy = entropy.clamp(min=0)

    def weight(scores: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return torch.exp2(scores - logsumexp.view(-1, *[1] * (scores.ndim - 1)))

    def score_with(position: Int[Tensor, " #query"]) -> Float[Tensor, " query"]:
        # Summed in another order than in the tiles: large scores must not be rounded above the largest.
        return torch.minimum(head.score_with(block, position), sums.largest)

    beyond = sums.top.scores == LOWEST  # more keys asked for than visible
    before = block.position - 1
    no_such_key = (before < 0) | (before >= head.visibility.num_keys)
    rows = {
        "logsumexp": (logsumexp + block.centre) * LN_2,
        "entropy": entropy,
        "normalized_entropy": (entropy / visible.double().log()).masked_fill(visible < 2, torch.nan),
        "max_weight": weight(sums.largest),
        "top_weights": weight(sums.top.scores).masked_fill(beyond, torch.nan),
        "sink_mass": weight(score_with(torch.zeros_like(before[:1]))),
        "distance": share * sums.distance / total,
        "participation": total.square() / sums.total_square / share.square(),
        "previous_token": weight(score_with(before)).masked_fill(no_such_key, torch.nan),
    }
    for name, figures in rows.items():
        unseen = (visible == 0).view(-1, *[1] * (figures.ndim - 1))
        rows[name] = figures.masked_fill(unseen, torch.nan)
    top_keys = head.visibility.kept[sums.top.ranks.masked_fill(beyond, 0)].masked_fill(beyond, -1)
    output = sums.output * (share / total).nan_to_num(0.0)[:, None]
    return rows | {"visible": visible, "top_keys": top_keys, "output": output}


def score_moments(sums: RowSums) -> Float[Tensor, " 5"]:
    """Count, mean, sum of squared deviations, minimum and maximum of a block's visible scores, in bits."""
    centre = sums.block.centre.double()
    visible = (sums.block.interval.stop - sums.block.interval.first).double()
    count = visible.sum()
    mean = (sums.score + visible * centre).sum() / count
    offset = centre - mean
    squares = sums.score_square + 2 * offset * sums.score + visible * offset.square()
    seen = visible > 0
    smallest = (sums.smallest + centre).where(seen, torch.inf).amin()
    largest = (sums.largest + centre).where(seen, -torch.inf).amax()
    return torch.stack([count, mean, squares.sum(), smallest, largest])


def merge_moments(blocks: Float[Tensor, "*batch block 5"]) -> dict[str, Float[Tensor, "*batch"]]:
    """Mean, unbiased variance, minimum and maximum over all blocks (Chan, Golub and LeVeque 1983)."""
    count, mean, squares, smallest, largest = blocks.unbind(-1)
    mean = mean.nan_to_num(0.0)  # of a block that sees nothing
    total = count.sum(-1)
    overall = (count * mean).sum(-1) / total
    deviations = squares.nan_to_num(0.0) + count * (mean - overall[..., None]).square()
    unseen = total == 0
    return {
        "score_mean": overall * LN_2,
        "score_variance": (deviations.sum(-1) / (total - 1)).masked_fill(total < 2, torch.nan) * LN_2**2,
        "score_min": (smallest.amin(-1) * LN_2).masked_fill(unseen, torch.nan),
        "score_max": (largest.amax(-1) * LN_2).masked_fill(unseen, torch.nan),
    }
