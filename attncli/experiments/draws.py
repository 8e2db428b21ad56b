"""What an experiment draws its numbers from."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from attncli.inputs.vectors import Vocabulary

Drawn = TypeVar("Drawn")


@runtime_checkable
class Progress(Protocol):
    """What an experiment tells while it runs."""

    def __call__(self, share: float, /) -> None:
        """The share that is done, between 0 and 1, of what takes long."""

    def write(self, text: str, /) -> None:
        """Text that a model writes, as it comes."""

    def tell(self, line: str, /) -> None:
        """What has been done once and for all."""


class Draws:
    """A generator and the vocabulary's table, which one experiment leaves to the next.

    `progress` is told what takes long.
    """

    def __init__(self, seed: int, progress: Progress | None = None) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.vocabulary: Vocabulary | None = None
        self.progress = progress

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """draw(*arguments, generator)."""
        return draw(*arguments, self.generator)

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each of the texts that run together, with arguments of its own: here there is one."""
        return [draw(*own, self.generator) for own in arguments]
