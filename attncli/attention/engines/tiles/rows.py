"""From running sums to the row figures of a block of queries, and to the moments of a head's scores."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.attention.engines.tiles.row_sums import RowSums
from attncli.attention.engines.tiles.scores import LOG2_E, LOWEST, Head

LN_2 = math.log(2)

RUNNING = (
    "logsumexp",
    "sums",
    "entropy",
    "normalized_entropy",
    "max_weight",
    "sink_mass",
    "distance",
    "participation",
    "previous_token",
)
"""What comes of the running sums, a number for each row."""


def row_statistics(head: Head, sums: RowSums) -> dict[str, Tensor]:
    """Every number of RUNNING by name, and top keys and output, for the block that was summed up.

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
        "sums": share,
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
    """Count, mean, sum of squared deviations, minimum and maximum of a block's visible scores."""
    centre = sums.block.centre.double()
    visible = (sums.block.interval.stop - sums.block.interval.first).double()
    count = visible.sum()
    mean = (sums.score + visible * centre).sum() / count
    offset = centre - mean
    squares = sums.score_square + 2 * offset * sums.score + visible * offset.square()
    seen = visible > 0
    smallest = (sums.smallest + centre).where(seen, torch.inf).amin()
    largest = (sums.largest + centre).where(seen, -torch.inf).amax()
    bits = torch.stack([count, mean, squares.sum(), smallest, largest])
    return bits * bits.new_tensor([1, LN_2, LN_2**2, LN_2, LN_2])
