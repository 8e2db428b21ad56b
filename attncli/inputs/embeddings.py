"""Tokens to vectors: sampled from a generator, or looked up in a vocabulary's table."""

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
