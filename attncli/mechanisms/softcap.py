"""Scores that cannot grow beyond a cap.

Gemma 2 (2408.00118), section 2; after Bello et al. 2016 (1611.09940).
"""

from jaxtyping import Float
from torch import Tensor


def softcapped(scores: Float[Tensor, "*scores"], cap: float) -> Float[Tensor, "*scores"]:
    """cap tanh(score / cap): almost the score where it is small, never beyond the cap."""
    return cap * (scores / cap).tanh()
