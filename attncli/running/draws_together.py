"""What generators draw for several experiments that run together.

A draw depends on the seed and on what was drawn before it, and on nothing else: where many experiments draw
the same sizes from the same seed, their tables and matrices are drawn once.
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
    """A generator after some draws, and what has been drawn from there on."""

    state: Tensor
    drawn: dict[tuple[Any, ...], tuple[Any, "_Point"]] = field(default_factory=dict)


class KeptDraws:
    """Every draw by its seed and the draws before it; forgotten all at once when they grow too large."""

    def __init__(self, max_bytes: int = MAX_KEPT_BYTES) -> None:
        self._generator = torch.Generator()
        self._starts: dict[int, _Point] = {}
        self._max_bytes = max_bytes
        self._bytes = 0

    def start(self, seed: int) -> _Point:
        """A generator of this seed before its first draw."""
        if self._bytes > self._max_bytes:
            self._starts.clear()
            self._bytes = 0
        if seed not in self._starts:
            self._starts[seed] = self._point(torch.Generator().manual_seed(seed))
        return self._starts[seed]

    def draw(
        self, point: _Point, draw: Callable[..., Drawn], arguments: tuple[Any, ...], key: tuple[Any, ...]
    ) -> tuple[Drawn, _Point]:
        """draw(*arguments, generator) from this point, and the point after it; `key` names the draw."""
        if key not in point.drawn:
            self._generator.set_state(point.state)
            result = draw(*arguments, self._generator)
            self._bytes += _bytes(result)
            point.drawn[key] = (result, self._point(self._generator))
        return point.drawn[key]

    def _point(self, generator: torch.Generator) -> _Point:
        point = _Point(generator.get_state())
        self._bytes += point.state.nbytes
        return point


KEPT = KeptDraws()
"""What this process has drawn so far. Whether a draw is found here or made anew changes no number."""


class DrawsTogether(Draws):
    """The draws of several experiments side by side, each as on a generator of its own seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds[0])
        self._points = [KEPT.start(seed) for seed in seeds]

    def draw_each(self, draw: Callable[..., Drawn], arguments: Sequence[tuple[Any, ...]]) -> list[Drawn]:
        """The draw of each experiment, with arguments of its own."""
        return self._draw(draw, arguments, [_key(draw, own) for own in arguments])

    def draw(self, draw: Callable[..., Drawn], *arguments: Any) -> Drawn:
        """The same draw for each: as it is where all drew the same numbers, else with an axis for them."""
        count = len(self._points)
        return stacked(self._draw(draw, [arguments] * count, [_key(draw, arguments)] * count))

    def _draw(
        self,
        draw: Callable[..., Drawn],
        arguments: Sequence[tuple[Any, ...]],
        keys: Sequence[tuple[Any, ...]],
    ) -> list[Drawn]:
        drawn = [
            KEPT.draw(point, draw, own, key)
            for point, own, key in zip(self._points, arguments, keys, strict=True)
        ]
        self._points = [point for _, point in drawn]
        return [result for result, _ in drawn]


def stacked(drawn: Sequence[Drawn]) -> Drawn:
    """Tensors, and mappings and dataclasses of them, with an axis for the several first.

    Where all are one and the same nothing is stacked: it broadcasts.
    """
    first: Any = drawn[0]
    if all(other is first for other in drawn):
        return drawn[0]
    # What the first is, all are, and so is the result: a type checker cannot follow that.
    if isinstance(first, Tensor):
        return torch.stack(drawn)  # type: ignore[arg-type, return-value]
    if isinstance(first, dict):
        return {name: stacked([one[name] for one in drawn]) for name in first}  # type: ignore[index, return-value]
    if is_dataclass(first):
        parts = [part.name for part in fields(first) if isinstance(getattr(first, part.name), Tensor)]
        changed = {name: stacked([getattr(one, name) for one in drawn]) for name in parts}
        return replace(first, **changed)  # type: ignore[type-var, return-value]
    raise AssertionError(f"no way to stack {type(first)}")


def _key(draw: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (draw, *map(_hashable, arguments))


def _hashable(argument: Any) -> Any:
    if isinstance(argument, dict):
        return tuple(argument.items())
    return tuple(argument) if isinstance(argument, list) else argument


def _bytes(drawn: Any) -> int:
    if isinstance(drawn, Tensor):
        return drawn.nbytes
    if isinstance(drawn, dict):
        return sum(map(_bytes, drawn.values()))
    return sum(_bytes(getattr(drawn, part.name)) for part in fields(drawn)) if is_dataclass(drawn) else 0
