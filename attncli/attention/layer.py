"""The attention of one layer, sampled from a seed or captured from a model, and its rows of weights.

score = (softcap(scale q k) + bias) / temperature; weight = exp(score) / (sum exp(score) + exp(sink)).
Vaswani et al. 2017 (1706.03762), equation 1; the rules of the scores have their papers in score_rules.py.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.attention.score_rules import PLAIN, ScoreRules
from attncli.attention.visibility import Visibility
from attncli.mechanisms.heads import repeat_heads


@dataclass(frozen=True)
class AttentionLayer:
    """Query, key and value of the heads of some texts, unexpanded, and how their scores are made.

    Each key/value head serves `group` query heads in a row (grouped-query attention).
    """

    query: Float[Tensor, "text head query dim"]
    key: Float[Tensor, "text kv_head key dim"]
    value: Float[Tensor, "text kv_head key value_dim"]
    visibility: Visibility
    scale: float
    rules: ScoreRules = PLAIN

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.query.shape[1]

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.query.shape[1] // self.key.shape[1]

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Texts, heads, queries, keys."""
        return (*self.query.shape[:3], self.key.shape[2])

    @cached_property
    def like(self) -> Tensor:
        """An empty tensor of the type and on the device of the computation."""
        return self.query.new_empty(0, dtype=torch.promote_types(self.query.dtype, torch.float32))

    @cached_property
    def longest_query(self) -> float:
        """The Euclidean length of the longest query."""
        return longest_row(self.query)

    @cached_property
    def longest_key(self) -> float:
        """The Euclidean length of the longest key; with that of the longest query it bounds the scores."""
        return longest_row(self.key)

    def expanded(self) -> tuple[Tensor, Tensor]:
        """Key and value with as many heads as the query."""
        return repeat_heads(self.key, self.num_heads), repeat_heads(self.value, self.num_heads)


def longest_row(rows: Float[Tensor, "*batch row dim"]) -> float:
    """The largest Euclidean length of a row; not finite where an entry is not; 0 where there is no row."""
    lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.promote_types(rows.dtype, torch.float32))
    return float(lengths.max()) if lengths.numel() else 0.0
