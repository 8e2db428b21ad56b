"""The matrix that takes a head's output back to the model's width: W_O in Vaswani et al. 2017, 3.2.2."""

from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

CHILDREN = ("o_proj", "out_proj", "c_proj", "out_lin", "Wo", "o", "dense", "proj", "wo")
SIBLINGS = ("output.dense",)
"""Its names in an attention module, and beside one: `attention.output.dense` in BERT."""


def output_projection(model: nn.Module, module: str, in_dim: int) -> nn.Module | None:
    """The layer that projects the merged heads of an attention module; None where it is not found."""
    parent, _, _ = module.rpartition(".")
    names = [f"{module}.{child}" for child in CHILDREN] + [f"{parent}.{sibling}" for sibling in SIBLINGS]
    modules = dict(model.named_modules())
    for name in names:
        layer = modules.get(name)
        if isinstance(layer, nn.Linear | Conv1D) and _matrix(layer).shape[1] == in_dim:
            return layer
    return None


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    assert isinstance(layer.weight, Tensor)
    return layer.weight.mT if isinstance(layer, Conv1D) else layer.weight


def matrix_and_bias(layer: nn.Module) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """What W_O multiplies by, and adds."""
    assert layer.bias is None or isinstance(layer.bias, Tensor)
    return _matrix(layer), layer.bias


def projection_of_heads(layer: nn.Module, num_heads: int) -> Float[Tensor, "head out value_dim"]:
    """The columns of W_O that belong to each head."""
    matrix = _matrix(layer).detach()
    return matrix.reshape(len(matrix), num_heads, -1).transpose(0, 1)
