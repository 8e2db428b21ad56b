"""The results of scale-demo: the variances of scores, and softmax rows of scaled logits."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import NamedTensor


class ScoreVariances(Record):
    """The variances of queries, keys and scores for one head_dim."""

    head_dim: int = column(about="Dimension of queries and keys")
    query: float | None = column(about="Variance of the queries", is_needed=False)
    key: float | None = column(about="Variance of the keys", is_needed=False)
    raw_scores: float | None = column(about="Variance of query · key", is_needed=False)
    scaled_scores: float | None = column(about="Variance of query · key / sqrt(head_dim)", is_needed=False)


class SharpenedSoftmax(Record):
    """The softmax of scaled logits, with its sharpness."""

    factor: float = column(about="Factor on the logits")
    softmax: list[float] = column(about="softmax(factor · logits)")
    max_weight: float | None = column(is_needed=False)
    entropy: float | None = column(unit="nats", is_needed=False)
    gradient_norm: float | None = column(
        about="Frobenius norm of the softmax's Jacobian: 0 if the softmax is saturated"
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaleEffects(Result):
    """The growth of the scores with head_dim, and the saturation of the softmax of `logits`."""

    logits: NamedTensor = tensor(num_axes=1, is_needed=True)
    variance: Records[ScoreVariances] = group(label="Variances by head dimension", is_bare_alone=True)
    sharpness: Records[SharpenedSoftmax] = group(label="Softmax of scaled logits")
