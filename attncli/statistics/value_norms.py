"""How much a key can contribute by its value: weight alone does not say what arrives."""

import torch
from jaxtyping import Float
from torch import Tensor

ROWS = 1024


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
