"""Tokens to vectors, vectors to query, key and value: sampled as torch's modules start, or looked up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import UserError
from attncli.mechanisms.heads import split_heads


@dataclass(frozen=True)
class Vocabulary:
    """Sorted words and a vector for each: row i of the table belongs to words[i]."""

    words: tuple[str, ...]
    table: Float[Tensor, "word dim"]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The row of each token; UserError that names the words without one."""
        index = {word: row for row, word in enumerate(self.words)}
        if missing := sorted(set(tokens) - index.keys()):
            raise UserError(f"embedding: previous has no vector for {', '.join(missing[:5])}")
        return [index[token] for token in tokens]


def sample_table(num_words: int, dim: int, generator: torch.Generator) -> Float[Tensor, "word dim"]:
    """Standard normal vectors, one per word, as torch.nn.Embedding starts."""
    return torch.randn(num_words, dim, generator=generator)


SAMPLERS: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "gaussian": lambda shape, generator: torch.randn(shape, generator=generator),
    "integers": lambda shape, generator: torch.randint(0, 10, shape, generator=generator).float(),
}
"""Vectors without a vocabulary; equal tokens get different ones: N(0, 1), or whole numbers from 0 to 9."""


@dataclass(frozen=True)
class Projection:
    """A sampled matrix in its own layout, which `axes` names; applying it gives `... token dim`."""

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


def sample_linear(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, "out in"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)) with layout (out, in), as torch.nn.Linear starts its weight."""
    matrix = torch.empty(out_dim, in_dim)
    torch.nn.init.kaiming_uniform_(matrix, a=sqrt(5), generator=generator)
    return matrix


def sample_linear_bias(out_dim: int, in_dim: int, generator: torch.Generator) -> Float[Tensor, " out"]:
    """U(-1/sqrt(in_dim), 1/sqrt(in_dim)), as torch.nn.Linear starts its bias."""
    bound = 1 / sqrt(in_dim)
    return torch.empty(out_dim).uniform_(-bound, bound, generator=generator)


def sample_projections(
    kind: str,
    embed_dim: int,
    sizes: Mapping[str, tuple[int, ...]],
    order: Sequence[str],
    generator: torch.Generator,
) -> dict[str, Projection]:
    """Projections for query, key and value, sampled in the given order; sizes are (dim,) or (heads, dim).

    linear: one torch.nn.Linear without bias, layout (dim, embed), its rows split into heads where there are
    several: (head, dim, embed). uniform: U[0, 1) with layout (embed, dim), or (head, dim, embed).
    """
    projections = {}
    for name in order:
        shape, axes = (*sizes[name], embed_dim), ("head", "dim", "embed")[-1 - len(sizes[name]) :]
        if kind == "linear":
            matrix = sample_linear(prod(sizes[name]), embed_dim, generator).view(shape)
        else:
            if len(shape) == 2:
                shape, axes = shape[::-1], axes[::-1]
            matrix = torch.rand(shape, generator=generator)
        projections[name] = Projection(matrix, axes)
    return projections
