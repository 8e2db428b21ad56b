"""Weight on nearby keys."""

from jaxtyping import Float
from torch import Tensor

from attncli.core.formulas import Rows

NEARBY = 8


def nearby_mass(rows: Rows) -> Float[Tensor, "*batch query"]:
    """sum p over the keys with |i - j| < 8."""
    return rows.weights.where(rows.distances() < NEARBY, 0.0).sum(dim=-1)
