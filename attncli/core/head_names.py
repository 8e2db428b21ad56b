"""Heads by their names: LAYER:HEAD, or STACK:LAYER:HEAD where a model has several stacks."""

import re
from collections.abc import Mapping
from typing import NamedTuple

PLACE = re.compile(r"(?:(encoder|decoder|cross):)?([0-9]{1,6}):([0-9]{1,6})")


class NamedHead(NamedTuple):
    """A head as it was named; its stack empty where the name has none."""

    stack: str
    layer: int
    head: int


def head_range(num_heads: Mapping[int, int], stack: str = "") -> str:
    """`must be from 0:0 to 29:8`, by the number of heads of each layer; layers with gaps are all named."""
    layers, start = sorted(num_heads), f"{stack}:" if stack else ""
    first, last = layers[0], layers[-1]
    gaps = f" (layers {', '.join(map(str, layers))})" if last - first >= len(layers) else ""
    return f"must be from {start}{first}:0 to {start}{last}:{num_heads[last] - 1}{gaps}"


def named_head(name: str) -> NamedHead:
    """A head by its name; ValueError for what is no head's name."""
    found = PLACE.fullmatch(name)
    if found is None:
        raise ValueError(f"must name a layer and a head, as 5:11 (got {name})")
    return NamedHead(found[1] or "", int(found[2]), int(found[3]))
