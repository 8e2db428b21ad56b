"""The attention of one layer as a model computed it: its scores and weights, any rows and columns of them.

score = softcap(scale q k) + bias, hidden keys at -inf; weight = exp(score - logsumexp), with the logit of
a sink in the logsumexp: the papers stand in score_rules.py, relative_bias.py and sink.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attncli.mechanisms.heads import repeat_heads
from attncli.mechanisms.score_rules import ScoreRules
from attncli.mechanisms.sink import logsumexp_with_sink
from attncli.mechanisms.visibility import Visibility, row_blocks


@dataclass(frozen=True)
class AttentionLayer:
    """Query, key and value of one sequence's heads, unexpanded, and how their scores are made.

    `module` is the qualified name in the model, `layer` the first number in it, `kind` self or cross. The
    axes of the bias are those of the scores or 1.
    """

    module: str
    layer: int
    kind: str
    query: Float[Tensor, "head query dim"]
    key: Float[Tensor, "kv_head key dim"]
    value: Float[Tensor, "kv_head key value_dim"]
    visibility: Visibility
    scale: float
    softcap: float | None = None
    sink: Float[Tensor, " head"] | None = None
    bias: Float[Tensor, "#head #query #key"] | None = None

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.query.shape[0]

    def scores(
        self, queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
    ) -> Float[Tensor, "head query key"]:
        """The scores of these queries with these keys, -inf where hidden."""
        key = repeat_heads(self.key[:, keys], self.num_heads)
        products = self.query[:, queries] @ key.mT
        visible = self.visibility.block(queries, keys)
        bias = None if self.bias is None else _block(self.bias, queries, keys)
        return self._finished(products, bias).masked_fill(~visible, -torch.inf)

    def scores_of_pairs(
        self, queries: Int[Tensor, " pair"], keys: Int[Tensor, " pair"]
    ) -> Float[Tensor, "head pair"]:
        """The score of queries[n] with keys[n] for each n, -inf where hidden."""
        key = repeat_heads(self.key[:, keys], self.num_heads)
        products = torch.linalg.vecdot(self.query[:, queries], key)
        bias = None
        if self.bias is not None:
            full = self.bias.expand(-1, self.query.shape[1], self.key.shape[1])
            bias = full[:, queries, keys]
        return self._finished(products, bias).masked_fill(~self.visibility(queries, keys), -torch.inf)

    def _finished(self, products: Tensor, bias: Tensor | None) -> Tensor:
        return ScoreRules(softcap=self.softcap, bias=bias).finished(products * self.scale)

    def logsumexp(self, scores: Float[Tensor, "head query key"]) -> Float[Tensor, "head query"]:
        """ln sum exp over all keys and the sink; -inf for a query that sees nothing."""
        return scores.logsumexp(dim=-1) if self.sink is None else logsumexp_with_sink(scores, self.sink)

    def weights(self, queries: Int[Tensor, " query"]) -> Float[Tensor, "head query key"]:
        """Whole rows of weights; zeros for a query that sees nothing."""
        scores = self.scores(queries, torch.arange(self.key.shape[1], device=self.key.device))
        return (scores - self.logsumexp(scores).unsqueeze(-1)).exp().nan_to_num(0.0)

    def row_blocks(self) -> Iterator[Int[Tensor, " query"]]:
        """All queries, some at a time."""
        return row_blocks(self.query.shape[1], self.query.device)

    def output(self) -> Float[Tensor, "head query value_dim"]:
        """weights @ value, with memory linear in the length: by torch's fused attention where that can."""
        if self.softcap is not None or self.sink is not None:
            value = repeat_heads(self.value, self.num_heads)
            return torch.cat([self.weights(queries) @ value for queries in self.row_blocks()], dim=1)
        visibility = self.visibility
        plain = Visibility(visibility.num_queries, visibility.num_keys, causal=visibility.causal)
        square = visibility.num_queries == visibility.num_keys
        if self.bias is None and visibility == plain and (square or visibility.sees_all):
            return self._fused(self.query, None)
        return torch.cat([self._fused_rows(queries) for queries in self.row_blocks()], dim=1)

    def _fused_rows(self, queries: Int[Tensor, " query"]) -> Float[Tensor, "head query value_dim"]:
        keys = torch.arange(self.visibility.num_keys, device=self.key.device)
        mask = self.visibility.block(queries, keys)
        if self.bias is not None:
            mask = _block(self.bias, queries, keys).masked_fill(~mask, -torch.inf)
        return self._fused(self.query[:, queries], mask).nan_to_num(0.0)

    def _fused(
        self, query: Float[Tensor, "head query dim"], mask: Tensor | None
    ) -> Float[Tensor, "head query value_dim"]:
        return F.scaled_dot_product_attention(
            query.unsqueeze(0),
            self.key.unsqueeze(0),
            self.value.unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None and self.visibility.causal,
            scale=self.scale,
            enable_gqa=self.key.shape[0] != self.num_heads,
        )[0]


def _block(
    bias: Float[Tensor, "heads row column"], queries: Int[Tensor, " query"], keys: Int[Tensor, " key"]
) -> Float[Tensor, "heads some_rows some_columns"]:
    rows = bias if bias.shape[1] == 1 else bias[:, queries]
    return rows if bias.shape[2] == 1 else rows[:, :, keys]
