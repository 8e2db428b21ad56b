"""Random numbers for several experiments that run together.

What is sampled depends only on the seed and on what was sampled before: where many experiments sample the
same sizes from the same seed, their tables and matrices are sampled once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attncli.experiments.draws import Drawn, Draws

MAX_KEPT_BYTES = 32 * 2**20


@dataclass
class _Point:
    """A generator after some draws, and what has been sampled from there on."""

    state: Tensor
    sampled: dict[tuple[Any, ...], tuple[Any, "_Point"]] = field(default_factory=dict)


class KeptDraws:
    """Every draw by its seed and the draws before it; all are forgotten when they grow too large."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._generator = torch.Generator()
        self._starts: dict[int, _Point] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def start(self, seed: int) -> _Point:
        """A generator with this seed, before its first draw."""
        if self._bytes > self._max_bytes:
            self._starts.clear()
            self._bytes = 0
        if seed not in self._starts:
            self._starts[seed] = self._point(torch.Generator().manual_seed(seed))
        return self._starts[seed]

    def draw(
        self, point: _Point, draw: Callable[..., Drawn], arguments: tuple[Any, ...]
    ) -> tuple[Drawn, _Point]:
        """draw(*arguments, generator) from this point, and the point after it."""
        key = (draw, *map(_hashable, arguments))
        if key not in point.sampled:
            self._generator.set_state(point.state)
            result = draw(*arguments, self._generator)
            self._bytes += _bytes(result)
            point.sampled[key] = (result, self._point(self._generator))
        return point.sampled[key]

    def _point(self, generator: torch.Generator) -> _Point:
        point = _Point(generator.get_state())
        self._bytes += point.state.nbytes
        return point


KEPT = KeptDraws()
"""What this process has sampled so far. Whether a draw is found here or repeated changes no number."""


class DrawsTogether(Draws):
    """The draws of several experiments side by side, each as from a generator with its own seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds[0])
        self._points = [KEPT.start(seed) for seed in seeds]

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each experiment, with its own arguments."""
        sampled = [KEPT.draw(point, draw, own) for point, own in zip(self._points, arguments, strict=True)]
        self._points = [point for _, point in sampled]
        return [result for result, _ in sampled]

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """The same draw for each experiment, along a first axis unless all sampled the same numbers."""
        return stacked(self.draw_each(draw, [arguments] * len(self._points)))


def stacked(sampled: Sequence[Drawn]) -> Drawn:
    """Tensors, and mappings and dataclasses of tensors, stacked along a new first axis.

    Where all are the same object nothing is stacked: it broadcasts.
    """
    first: Any = sampled[0]
    if all(other is first for other in sampled):
        return sampled[0]
    # All have the type of the first, and so does the result: a type checker cannot follow that.
    if isinstance(first, Tensor):
        return torch.stack(sampled)  # type: ignore[arg-type, return-value]
    if isinstance(first, dict):
        return {name: stacked([one[name] for one in sampled]) for name in first}  # type: ignore[index, return-value]
    if is_dataclass(first):
        parts = [part.name for part in fields(first) if isinstance(getattr(first, part.name), Tensor)]
        changed = {name: stacked([getattr(one, name) for one in sampled]) for name in parts}
        return replace(first, **changed)  # type: ignore[type-var, return-value]
    raise AssertionError(f"no way to stack {type(first)}")


def _hashable(argument: Any) -> Any:
    if isinstance(argument, dict):
        return tuple(argument.items())
    return tuple(argument) if isinstance(argument, list) else argument


def _bytes(sampled: Any) -> int:
    if isinstance(sampled, Tensor):
        return sampled.nbytes
    if isinstance(sampled, dict):
        return sum(map(_bytes, sampled.values()))
    return (
        sum(_bytes(getattr(sampled, part.name)) for part in fields(sampled)) if is_dataclass(sampled) else 0
    )
