"""Differential attention: the difference of two softmaxes cancels what both attend to.

weights = softmax(q1 k1^T scale) - lambda softmax(q2 k2^T scale), with q1 and q2 the halves of query, k1 and
k2 those of key. Ye et al. 2024, Differential Transformer (2410.05258), section 2.1. The paper's normalisation
of each head's output, a part of its multi-head layer, is not here.
"""

from jaxtyping import Float
from torch import Tensor


def differential_lambda(vectors: Float[Tensor, "4 dim"], lambda_init: float) -> float:
    """exp(q1 . k1) - exp(q2 . k2) + lambda_init for the learned vectors q1, k1, q2, k2 (equation 2)."""
    query1, key1, query2, key2 = vectors.double()
    return float((query1 @ key1).exp() - (query2 @ key2).exp()) + lambda_init
