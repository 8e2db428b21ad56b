"""What tokens receive and contribute, beyond the weight of a single row."""

import torch
from jaxtyping import Float
from torch import Tensor

ROWS = 1024


def received_mass(weights: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch key"]:
    """The sum over queries of the weights on a key: the sum of a column of the matrix."""
    return weights.sum(dim=-2)


def outside_mass(
    logsumexp: Float[Tensor, "*batch query"], sink: Float[Tensor, "*head"]
) -> Float[Tensor, "*batch query"]:
    """exp(sink - logsumexp), the sink in the logsumexp: the weight on no key. GPT-OSS (2508.10925)."""
    return (sink.to(logsumexp).unsqueeze(-1) - logsumexp).exp()


def value_norms(
    value: Float[Tensor, "head key value_dim"], projection: Float[Tensor, "head out value_dim"]
) -> Float[Tensor, "head key"]:
    """||v_j W_O|| for each head: with p_ij it gives ||p_ij v_j W_O||. Kobayashi et al. 2020 (2004.10102),
    section 2.

    From the Gram matrix of W_O, so that memory is that of the values.
    """
    value, projection = value.double(), projection.double()
    gram = projection.mT @ projection
    blocks = (value[:, start : start + ROWS] for start in range(0, value.shape[1], ROWS))
    squares = [((block @ gram) * block).sum(dim=-1) for block in blocks]
    return torch.cat(squares, dim=1).clamp(min=0).sqrt()


def roll_out(
    rolled: Float[Tensor, "token token"], weights: Float[Tensor, "token token"]
) -> Float[Tensor, "token token"]:
    """(A / 2 + I / 2) rolled, its rows normalised: one more layer on top, A the mean of its heads' weights.

    Started with the identity it says where each token's content came from; I stands for the residual
    connection. Abnar & Zuidema 2020 (2005.00928), section 3.
    """
    mixed = weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    return mixed / mixed.sum(dim=-1, keepdim=True) @ rolled
