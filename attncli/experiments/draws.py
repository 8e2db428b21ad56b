"""The random numbers of an experiment, and how it reports its progress."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from attncli.inputs.vectors import Vocabulary

Drawn = TypeVar("Drawn")


@runtime_checkable
class Progress(Protocol):
    """What hears from an experiment while it runs."""

    def __call__(self, share: float, /) -> None:
        """The share of a long computation that is done, between 0 and 1."""

    def write(self, text: str, /) -> None:
        """Text as a model generates it."""

    def tell(self, line: str, /) -> None:
        """A line that stays: a part is finished."""


class Draws:
    """A generator and the vocabulary's table, which one experiment leaves to the next."""

    def __init__(self, seed: int, progress: Progress | None = None) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.vocabulary: Vocabulary | None = None
        self.progress = progress

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """draw(*arguments, generator)."""
        return draw(*arguments, self.generator)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """One draw for each text that runs together, each with its own arguments: here there is one text."""
        return [draw(*own, self.generator) for own in arguments]
