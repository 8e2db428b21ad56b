"""How spread out a row of weights is."""

from jaxtyping import Float
from torch import Tensor

from attncli.statistics.rows import Rows


def entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """-sum p ln p, in nats, with 0 ln 0 = 0. Shannon 1948; of attention: Clark et al. 2019 (1906.04341)."""
    return rows.entropy


def normalized_entropy(rows: Rows) -> Float[Tensor, "*batch query"]:
    """Entropy over ln(number of visible keys): 1 where a row is uniform; NaN where one key is visible."""
    return rows.entropy / rows.most_entropy()
