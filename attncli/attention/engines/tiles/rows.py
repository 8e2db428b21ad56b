"""From running sums to the row figures of a block of queries, and to the moments of a head's scores."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.engines.tiles.row_sums import RowSums
from attncli.attention.engines.tiles.scores import LOG2_E, LOWEST, Head, QueryBlock

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
IN_FLOAT64 = ("participation",)
"""Those that a strong sink takes beyond float32."""


def row_statistics(head: Head, block: QueryBlock, sums: RowSums) -> dict[str, Tensor]:
    """Every number of RUNNING by name, and top keys; `inverse` makes 2^(score - reference) a weight.

    The sums of the output become the output, in their place.

    A sink joins the denominator only: with f the share of the keys, p = f e / sum e, and the entropy
    -sum p ln p is f (H - ln f), H being the entropy of e / sum e.
    """
    total = sums.total
    visible = block.interval.stop - block.interval.first
    keys_alone = sums.reference + total.log2()
    logsumexp = torch.logaddexp2(keys_alone, head.sink * LOG2_E - block.centre)
    log_share = keys_alone - logsumexp
    share = torch.exp2(log_share)
    entropy = share * (total.log2() - sums.weighted / total - log_share) * LN_2
    entropy = entropy.clamp(min=0)

    beyond = sums.top_scores[:, :-1] == LOWEST  # more keys asked for than visible
    before = block.position - 1
    # Summed in another order than in the tiles: large scores must not be rounded above the largest.
    first, previous = (
        torch.minimum(head.score_with(block, position), sums.largest)
        for position in (torch.zeros_like(before[:1]), before)
    )
    no_such_key = (before < 0) | (before >= head.visibility.num_keys)
    rows = {
        "logsumexp": (logsumexp + block.centre) * LN_2,
        "sums": share,
        "entropy": entropy,
        "normalized_entropy": (entropy / visible.double().log()).masked_fill(visible < 2, torch.nan),
        "max_weight": _weight(sums.largest, logsumexp),
        "top_weights": _weight(sums.top_scores[:, :-1], logsumexp).masked_fill(beyond, torch.nan),
        "sink_mass": _weight(first, logsumexp),
        "distance": share * sums.distance / total,
        "participation": total.square() / sums.total_square / share.square(),
        "previous_token": _weight(previous, logsumexp).masked_fill(no_such_key, torch.nan),
    }
    is_blind = visible == 0
    if is_blind.any():
        for name, numbers in rows.items():
            unseen = is_blind.view(-1, *[1] * (numbers.ndim - 1))
            rows[name] = numbers.masked_fill(unseen, torch.nan)
    top_keys = head.visibility.kept[sums.top_ranks[:, :-1].masked_fill(beyond, 0)].masked_fill(beyond, -1)
    sums.output.mul_((share / total).nan_to_num(0.0)[:, None])
    inverse = torch.exp2(sums.reference - logsumexp).masked_fill(is_blind, 0.0)
    return rows | {"visible": visible, "top_keys": top_keys, "inverse": inverse}


def _weight(scores: Float[Tensor, "query ..."], logsumexp: Float[Tensor, " query"]) -> Tensor:
    return torch.exp2(scores - logsumexp.view(-1, *[1] * (scores.ndim - 1)))


def score_moments(block: QueryBlock, sums: RowSums) -> Float[Tensor, " 5"]:
    """Count, mean, sum of squared deviations, minimum and maximum of a block's visible scores."""
    centre = block.centre.double()
    visible = (block.interval.stop - block.interval.first).double()
    count = visible.sum()
    mean = (sums.score + visible * centre).sum() / count
    offset = centre - mean
    squares = sums.score_square + 2 * offset * sums.score + visible * offset.square()
    seen = visible > 0
    smallest = (sums.smallest + centre).where(seen, torch.inf).amin()
    largest = (sums.largest + centre).where(seen, -torch.inf).amax()
    bits = torch.stack([count, mean, squares.sum(), smallest, largest])
    return bits * bits.new_tensor([1, LN_2, LN_2**2, LN_2, LN_2])
