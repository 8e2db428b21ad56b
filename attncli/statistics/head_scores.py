"""What a head does, as one number each: how much of its weight falls on a detection pattern.

A pattern D (query, key) is 0 or 1. previous: j = i - 1; current: j = i; duplicate: j < i with the same
token; induction: 1 <= j <= i with token[j - 1] = token[i]. The figures need the weight that falls on the
pattern in each row, not D.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def pattern_score(
    mass: Float[Tensor, "head query"], has_pattern: Bool[Tensor, " query"]
) -> Float[Tensor, " head"]:
    """mean_i sum_j D_ij p_ij over the rows where the pattern is not empty; NaN where there is none."""
    return mass[:, has_pattern].mean(dim=-1)


def mul_score(
    mass: Float[Tensor, "head query"], row_sums: Float[Tensor, "head query"]
) -> Float[Tensor, " head"]:
    """sum D p / sum p: the `mul` score of TransformerLens' head_detector, over all rows."""
    return mass.sum(dim=-1) / row_sums.sum(dim=-1)


def induction_stripe(stripe: Float[Tensor, "head query"]) -> Float[Tensor, " head"]:
    """Mean of the weights p[i, i + 1 - n], the diagonal at offset 1 - n, over the second r of [BOS] + r +
    r, |r| = n.

    The key there came after the earlier copy of the query's token: a perfect induction head scores 1
    (Olsson et al. 2022, 2209.11895; TransformerLens' main demo).
    """
    return stripe.mean(dim=-1)


def sink_rate(first_key_weight: Float[Tensor, " head"], threshold: float = 0.3) -> float:
    """Share of heads whose mean weight on the first key exceeds a threshold. Gu et al. 2024 (2410.10781)."""
    return (first_key_weight > threshold).double().mean().item()


def repeated_positions(ids: Int[Tensor, " token"]) -> list[Int[Tensor, " _"]]:
    """The positions of each token that occurs more than once, in order: pairs of them make two patterns."""
    order = ids.argsort(stable=True)
    ordered = ids[order]
    starts = (ordered[1:] != ordered[:-1]).nonzero()[:, 0] + 1
    return [positions for positions in order.tensor_split(starts.tolist()) if len(positions) > 1]
