"""The results of scale-demo: the variances of scores, and softmax rows of scaled logits."""

from dataclasses import dataclass

from attncli.records.columns import Record, Records, Result, column, group, tensor
from attncli.records.values import NamedTensor


class ScoreVariances(Record):
    """The variances of queries, keys, and scores before and after scaling, for one head_dim."""

    head_dim: int
    query: float | None = column(is_needed=False)
    key: float | None = column(is_needed=False)
    raw_scores: float | None = column(is_needed=False)
    scaled_scores: float | None = column(is_needed=False)


class SharpenedSoftmax(Record):
    """softmax(factor · logits), its sharpness, and the Frobenius norm of its Jacobian."""

    factor: float
    softmax: list[float]
    max_weight: float | None = column(is_needed=False)
    entropy: float | None = column(unit="nats", is_needed=False)
    gradient_norm: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaleEffects(Result):
    """The growth of the scores with head_dim, and the saturation of the softmax of `logits`."""

    logits: NamedTensor = tensor(num_axes=1, is_needed=True)
    variance: Records[ScoreVariances] = group(is_bare_alone=True)
    sharpness: Records[SharpenedSoftmax] = group()
