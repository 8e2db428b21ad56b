"""How far a row of weights looks."""

from jaxtyping import Float
from torch import Tensor

from attncli.statistics.rows import Rows


def distance(rows: Rows) -> Float[Tensor, "*batch query"]:
    """sum p |i - j|, in tokens: mean distance from query i to the keys. Vig & Belinkov 2019 (1906.04284)."""
    return rows.mean_distance
