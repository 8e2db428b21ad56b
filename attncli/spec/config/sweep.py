"""`sweep:` maps keys to lists of values, and a file to the grid of their combinations."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import NamedTuple

from attncli.spec.config.validation import Given

MAX_POINTS = 100_000


class Point(NamedTuple):
    """One combination of swept values, and its name: `head_dim 8, causal true`."""

    given: dict[str, Given]
    label: str


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def num_points(axes: Mapping[str, list[Given]]) -> int:
    """How many combinations there are; one where nothing is swept."""
    return prod(map(len, axes.values()))


def grid(axes: Mapping[str, list[Given]]) -> Iterator[Point]:
    """Every combination, the last key's values changing first."""
    for values in product(*axes.values()):
        given = dict(zip(axes, values, strict=True))
        yield Point(given, ", ".join(f"{key} {_shown(value.value)}" for key, value in given.items()))
