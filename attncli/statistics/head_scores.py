"""What a head does, as one number each: how much of its weight falls on a detection pattern.

A pattern D (query, key) is 0 or 1.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Places:
    """Some rows and columns of the weights: positions, and the tokens of each text there.

    `first_key` is the first key that counts; `num_tokens` is how many tokens a text has, `repeat` how many of
    them are repeated on the probe. `special` are the tokenizer's own tokens; `from_queries` and `to_keys` are
    the places that were asked for.
    """

    queries: Int[Tensor, "query 1"]
    keys: Int[Tensor, " key"]
    query_ids: Int[Tensor, "text query 1"]
    key_ids: Int[Tensor, "text 1 key"]
    ids_before: Int[Tensor, "text 1 key"]
    special: Bool[Tensor, "text 1 key"]
    from_queries: Bool[Tensor, "text query 1"]
    to_keys: Bool[Tensor, "text 1 key"]
    first_key: int
    num_tokens: int
    repeat: int

    @property
    def counted(self) -> Bool[Tensor, " key"]:
        """The keys that are not left out."""
        return self.keys >= self.first_key


Pattern = Bool[Tensor, "*#text #query key"]


def first_four(at: Places) -> Pattern:
    """j < 4. Xiao et al. 2023 (2309.17453) keep four sink tokens."""
    return (at.keys < 4).unsqueeze(0)


def previous_token(at: Places) -> Pattern:
    """j = i - 1."""
    return (at.keys == at.queries - 1) & at.counted


def next_token(at: Places) -> Pattern:
    """j = i + 1: Clark et al. 2019 (1906.04341) find such heads in BERT; a causal head has none."""
    return (at.keys == at.queries + 1) & at.counted


def current_token(at: Places) -> Pattern:
    """j = i."""
    return (at.keys == at.queries) & at.counted


def duplicate_token(at: Places) -> Pattern:
    """j < i with the same token."""
    return (at.key_ids == at.query_ids) & (at.keys < at.queries) & at.counted


def induction(at: Places) -> Pattern:
    """1 <= j <= i, and the token before j is that of i: what came after an earlier copy."""
    return (at.ids_before == at.query_ids) & (at.keys <= at.queries) & at.counted


def special_mass(at: Places) -> Pattern:
    """j is one of the tokenizer's own tokens: [CLS], [SEP], <s>. In BERT many heads park weight there (Clark
    et al. 2019).
    """
    return at.special & at.counted


def from_to_weight(at: Places) -> Pattern:
    """i is among the queries asked for, j among the keys."""
    return at.from_queries & at.to_keys & at.counted


def induction_stripe(at: Places) -> Pattern:
    """j = i + 1 - n, for i in the second r of [BOS] + r + r, |r| = n.

    The key there came after the earlier copy of the query's token: a perfect induction head scores 1
    (Olsson et al. 2022, 2209.11895; TransformerLens' main demo).
    """
    return (at.keys == at.queries + 1 - at.repeat) & (at.queries >= at.num_tokens - at.repeat)


def sink_rate(first_key_weight: Float[Tensor, " head"], threshold: float = 0.3) -> float:
    """Share of heads whose mean weight on the first key exceeds a threshold. Gu et al. 2024 (2410.10781)."""
    return (first_key_weight > threshold).double().mean().item()
