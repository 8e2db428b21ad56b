"""Embeddings to query, key and value: the matrices of a projection, as they are drawn, and applying them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.mechanisms.heads import split_heads


@dataclass(frozen=True)
class Projection:
    """A drawn matrix in its own layout, which `axes` names; applied it gives `... token dim`."""

    matrix: Float[Tensor, "..."]
    axes: tuple[str, ...]

    def to(self, device: torch.device) -> "Projection":
        """The same projection with its matrix on a device."""
        return Projection(self.matrix.to(device), self.axes)

    def __call__(self, vectors: Float[Tensor, "*batch token embed"]) -> Float[Tensor, "*out token dim"]:
        """The projected vectors; a matrix with a head axis puts a head axis before the tokens."""
        if self.axes == ("embed", "dim"):
            return vectors @ self.matrix
        if self.axes == ("dim", "embed"):
            return vectors @ self.matrix.mT
        # One product for all heads: a broadcast one would copy the vectors for each.
        return split_heads(vectors @ self.matrix.flatten(-3, -2).mT, self.matrix.shape[-3])


def draw_linear(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, "out in"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)) with layout (out, in), as torch.nn.Linear starts its weight."""
    matrix = torch.empty(out_dim, in_dim)
    torch.nn.init.kaiming_uniform_(matrix, a=sqrt(5), generator=generator)
    return matrix


def draw_linear_bias(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, " out"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)), as torch.nn.Linear starts its bias."""
    bound = 1 / sqrt(in_dim)
    return torch.empty(out_dim).uniform_(-bound, bound, generator=generator)


def draw_projections(
    kind: str,
    embed_dim: int,
    sizes: dict[str, int],
    order: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Projection]:
    """Projections for the query, key and value of one head, of the given sizes, drawn in the given order.

    linear: layout (out, in) as in torch.nn.Linear, no bias. uniform: U[0, 1) with layout (in, out).
    """
    projections = {}
    for name in order:
        if kind == "linear":
            matrix = draw_linear(sizes[name], embed_dim, generator)
            projections[name] = Projection(matrix, ("dim", "embed"))
        else:
            matrix = torch.rand(embed_dim, sizes[name], generator=generator)
            projections[name] = Projection(matrix, ("embed", "dim"))
    return projections


def draw_head_projections(
    kind: str,
    embed_dim: int,
    sizes: dict[str, tuple[int, int]],
    order: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Projection]:
    """Projections for several heads; sizes are (heads, dim), layout (head, dim, embed).

    linear: one torch.nn.Linear of embed_dim -> heads * dim without bias, its rows split into heads. uniform:
    U[0, 1) drawn as (head, dim, embed).
    """
    projections = {}
    for name in order:
        heads, dim = sizes[name]
        if kind == "linear":
            matrix = draw_linear(heads * dim, embed_dim, generator).view(heads, dim, embed_dim)
        else:
            matrix = torch.rand(heads, dim, embed_dim, generator=generator)
        projections[name] = Projection(matrix, ("head", "dim", "embed"))
    return projections
