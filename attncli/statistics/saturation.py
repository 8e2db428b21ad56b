"""How much a softmax still answers to its logits."""

from jaxtyping import Float
from torch import Tensor


def softmax_gradient_norm(weights: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch"]:
    """Frobenius norm of the softmax Jacobian diag(p) - p p^T: sqrt(S2 - 2 S3 + S2^2) with Sn = sum p^n.

    It vanishes as the row saturates to one-hot: the reason for scaling in Vaswani et al. 2017, section 3.2.1.
    Computed as the sum over the Jacobian's entries, which loses no digits there.
    """
    diagonal = weights * (1 - weights)
    off_diagonal = weights.unsqueeze(-1) * weights.unsqueeze(-2)
    off_diagonal = off_diagonal - off_diagonal.diagonal(dim1=-2, dim2=-1).diag_embed()
    return (diagonal.square().sum(dim=-1) + off_diagonal.square().sum(dim=(-2, -1))).sqrt()
