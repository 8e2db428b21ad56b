"""What `attention_statistics` returns, with the formula, unit and nulls of every number."""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class AttentionStatistics:
    """Statistics of the weights p = exp(score - logsumexp), a row of them for each query.

    `rows` has every statistic of the table ROW_STATISTICS, and each of them is an attribute, too:

    - entropy: -sum_j p_j ln p_j over the keys (the sink is no key)
    - normalized_entropy: entropy / ln visible; null where one key is visible
    - max_weight: max_j p_j
    - sink_mass: the weight on the first key; 0 where it is hidden
    - distance: sum_j p_j |position - j|
    - participation: 1 / sum_j p_j^2, the number of keys that share the weight, in float64: above `visible`
      where a sink takes most

    Logarithms are natural (nats); distances are in tokens. `position` is the query's place among the
    keys: its index, with causal plus num_keys - num_queries, so that the last query stands at the last
    key. "Visible" entries are those that no mask hides; hidden ones have weight 0.

    Null is NaN in float tensors and -1 in `top_keys`. A query that sees no key has null row statistics,
    `visible` 0 and an output of zeros, and counts nowhere else. Half precision gives float32 numbers.
    """

    output: Float[Tensor, "*batch query value_dim"] | None
    """sum_j p_j value_j; None without values."""
    logsumexp: Float[Tensor, "*batch query"]
    """ln sum_j exp(score_j), over the visible keys and the sink."""
    rows: Mapping[str, Float[Tensor, "*batch query"]]
    """Every row statistic by its name."""
    top_keys: Int[Tensor, "*batch query top_k"]
    """The keys of the largest weights, largest and then earliest first; null beyond `visible`."""
    top_weights: Float[Tensor, "*batch query top_k"]
    """Their weights; null beyond `visible`."""
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

    def __getattr__(self, name: str) -> Float[Tensor, "*batch query"]:
        """A row statistic."""
        rows = vars(self).get("rows", {})  # while it is copied or unpickled there are none yet
        if name not in rows:
            known = ", ".join(rows)
            raise AttributeError(f"AttentionStatistics has no attribute {name!r}; its rows are {known}")
        row: Tensor = rows[name]
        return row

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.rows]
