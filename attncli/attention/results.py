"""What an engine is asked for, and what it gives."""

from dataclasses import dataclass, field

from jaxtyping import Bool, Float, Int
from torch import Tensor

from attncli.attention.patterns import Patterns

MAP_SIZE = 64
"""Blocks along each side of a pooled map."""


@dataclass(frozen=True)
class Wanted:
    """What to compute beside the logsumexp and the sum of each row.

    `rows` are names of row statistics, `previous_token` asks for the weight on the key before each query,
    `weights` and `scores` ask for whole matrices, `kept_heads` for the weights of some heads, `pooled` for
    maps of at most that many blocks along each side.
    """

    rows: tuple[str, ...] = ()
    top_k: int = 0
    previous_token: bool = False
    output: bool = False
    weights: bool = False
    scores: bool = False
    kept_heads: tuple[int, ...] = ()
    head_mean: bool = False
    score_moments: bool = False
    received_mass: bool = False
    pooled: int | None = None
    patterns: Patterns | None = None


@dataclass(frozen=True)
class Moments:
    """Mean, unbiased variance and range of the scores over the visible entries of each head, in float64.

    NaN where there are none, the variance below two of them.
    """

    mean: Float[Tensor, "text head"]
    variance: Float[Tensor, "text head"]
    smallest: Float[Tensor, "text head"]
    largest: Float[Tensor, "text head"]


@dataclass(frozen=True)
class Computed:
    """What was asked for; the rest is None or empty. A query that sees no key has NaN in `rows`.

    `raw_scores` are query . key, `scores` as the softmax takes them, hidden ones -inf. `top_keys` are -1 and
    `top_weights` NaN beyond the visible keys. `pattern_mass` is a sum over the rows.
    """

    rows: dict[str, Float[Tensor, "text head query"]] = field(default_factory=dict)
    sums: Float[Tensor, "text head query"] | None = None
    logsumexp: Float[Tensor, "text head query"] | None = None
    visible: Int[Tensor, "text query"] | None = None
    previous_token: Float[Tensor, "text head query"] | None = None
    top_keys: Int[Tensor, "text head query rank"] | None = None
    top_weights: Float[Tensor, "text head query rank"] | None = None
    output: Float[Tensor, "text head query value_dim"] | None = None
    weights: Float[Tensor, "text head query key"] | None = None
    raw_scores: Float[Tensor, "text head query key"] | None = None
    scores: Float[Tensor, "text head query key"] | None = None
    kept_weights: Float[Tensor, "text kept query key"] | None = None
    head_mean: Float[Tensor, "text query key"] | None = None
    moments: Moments | None = None
    received_mass: Float[Tensor, "text head key"] | None = None
    pooled_mean: Float[Tensor, "text head query_block key_block"] | None = None
    pooled_max: Float[Tensor, "text head query_block key_block"] | None = None
    pattern_mass: Float[Tensor, "text head pattern"] | None = None

    @property
    def seeing(self) -> Bool[Tensor, "text query"]:
        """The queries that see a key."""
        assert self.visible is not None
        return self.visible > 0
