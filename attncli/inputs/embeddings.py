"""Tokens to vectors: drawn from a generator, or looked up in a vocabulary's table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attncli.errors import UserError


@dataclass(frozen=True)
class Vocabulary:
    """Sorted words and a vector for each: row i of the table belongs to words[i]."""

    words: tuple[str, ...]
    table: Float[Tensor, "word dim"]

    def ids(self, tokens: Sequence[str]) -> list[int]:
        """The row of each token; UserError that names the words without one."""
        index = dict(zip(self.words, range(len(self.words)), strict=True))
        try:
            return [index[token] for token in tokens]
        except KeyError:
            missing = sorted(set(tokens) - index.keys())
            raise UserError(f"embedding: previous has no vector for {', '.join(missing[:5])}") from None


def draw_table(num_words: int, dim: int, generator: torch.Generator) -> Float[Tensor, "word dim"]:
    """Standard normal vectors, one a word, as torch.nn.Embedding starts."""
    return torch.randn(num_words, dim, generator=generator)


def draw_gaussian(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Standard normal vectors; equal tokens get different ones."""
    return torch.randn(shape, generator=generator)


def draw_integers(shape: tuple[int, ...], generator: torch.Generator) -> Float[Tensor, "..."]:
    """Whole numbers from 0 to 9, as floating point."""
    return torch.randint(0, 10, shape, generator=generator).float()


DRAWN: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "gaussian": draw_gaussian,
    "integers": draw_integers,
}
