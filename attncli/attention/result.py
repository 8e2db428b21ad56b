"""What `attention_statistics` returns, with the formula, unit and nulls of every figure."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class AttentionStatistics:
    """Figures of the weights p = exp(score - logsumexp), a row of them for each query.

    Logarithms are natural (nats); distances are in tokens. `position` is the query's place among the
    keys: its index, with causal plus num_keys - num_queries, so that the last query stands at the last
    key. "Visible" entries are those that no mask hides; hidden ones have weight 0.

    Null is NaN in float tensors and -1 in `top_keys`. A query that sees no key has null row figures,
    `visible` 0 and an output of zeros, and counts nowhere else. Half precision gives float32 figures.
    """

    output: Float[Tensor, "*batch query value_dim"] | None
    """sum_j p_j value_j; None without values."""
    logsumexp: Float[Tensor, "*batch query"]
    """ln sum_j exp(score_j), over the visible keys and the sink."""
    entropy: Float[Tensor, "*batch query"]
    """-sum_j p_j ln p_j over the keys (the sink is no key)."""
    normalized_entropy: Float[Tensor, "*batch query"]
    """entropy / ln visible; null where one key is visible."""
    max_weight: Float[Tensor, "*batch query"]
    """max_j p_j"""
    top_keys: Int[Tensor, "*batch query top_k"]
    """The keys of the largest weights, largest and then earliest first; null beyond `visible`."""
    top_weights: Float[Tensor, "*batch query top_k"]
    """Their weights; null beyond `visible`."""
    sink_mass: Float[Tensor, "*batch query"]
    """The weight on the first key; 0 where it is hidden."""
    distance: Float[Tensor, "*batch query"]
    """sum_j p_j |position - j|"""
    participation: Float[Tensor, "*batch query"]
    """1 / sum_j p_j^2: the number of keys that share the weight (above `visible` where a sink takes most)."""
    previous_token: Float[Tensor, "*batch query"]
    """The weight on the key at position - 1; 0 where it is hidden, null where there is no such key."""
    visible: Int[Tensor, "*batch query"]
    """The number of keys this query may see."""
    score_mean: Float[Tensor, "*batch"]
    """Mean of the (scaled, capped) scores over all visible entries of a head; null where there is none."""
    score_variance: Float[Tensor, "*batch"]
    """Their unbiased variance; null below two entries."""
    score_min: Float[Tensor, "*batch"]
    """The smallest of them."""
    score_max: Float[Tensor, "*batch"]
    """The largest of them."""
    received_mass: Float[Tensor, "*batch key"] | None
    """sum_i p_ij over the queries i; None unless asked for."""
    pooled_mean: Float[Tensor, "*batch pooled_query pooled_key"] | None
    """Mean weight of blocks of ceil(length / pooled) queries by as many keys, the last ones shorter."""
    pooled_max: Float[Tensor, "*batch pooled_query pooled_key"] | None
    """Largest weight of the same blocks."""
