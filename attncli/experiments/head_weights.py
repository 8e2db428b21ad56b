"""The weights of a layer's heads where they are asked for: without the matrix, or from one that is there."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from attncli.mechanisms.attention_layer import AttentionLayer

Queries = Int[Tensor, " query"]
Keys = Int[Tensor, " key"]


@dataclass(frozen=True)
class ScoredWeights:
    """exp(score - logsumexp), from the query and key of a layer."""

    layer: AttentionLayer
    logsumexp: Float[Tensor, "head query"]

    @property
    def num_keys(self) -> int:
        """Keys that there are."""
        return self.layer.key.shape[1]

    def block(self, queries: Queries, keys: Keys) -> Float[Tensor, "head query key"]:
        """The weights of these queries on these keys."""
        return self._weights(self.layer.scores(queries, keys), self.logsumexp[:, queries].unsqueeze(-1))

    def pairs(self, queries: Queries, keys: Keys) -> Float[Tensor, "head query"]:
        """The weight of queries[n] on keys[n] for each n."""
        return self._weights(self.layer.scores_of_pairs(queries, keys), self.logsumexp[:, queries])

    @staticmethod
    def _weights(scores: Tensor, logsumexp: Tensor) -> Tensor:
        return (scores - logsumexp).exp().nan_to_num(0.0)


@dataclass(frozen=True)
class DenseWeights:
    """A matrix that is there."""

    weights: Float[Tensor, "head query key"]

    @property
    def num_keys(self) -> int:
        """Keys that there are."""
        return self.weights.shape[2]

    def block(self, queries: Queries, keys: Keys) -> Float[Tensor, "head query key"]:
        """The weights of these queries on these keys."""
        return self.weights[:, queries.unsqueeze(-1), keys]

    def pairs(self, queries: Queries, keys: Keys) -> Float[Tensor, "head query"]:
        """The weight of queries[n] on keys[n] for each n."""
        return self.weights[:, queries, keys]


HeadWeights = ScoredWeights | DenseWeights
