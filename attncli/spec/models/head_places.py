"""Heads by their names: LAYER:HEAD, and STACK:LAYER:HEAD where a model has several stacks."""

import re
from collections.abc import Sequence
from typing import NamedTuple

PLACE = re.compile(r"(?:(encoder|decoder|cross):)?([0-9]{1,6}):([0-9]{1,6})")


class NamedHead(NamedTuple):
    """A head as it was named; its stack empty where the name has none."""

    stack: str
    layer: int
    head: int


def split_names(value: object) -> object:
    """A text as the list of names that it holds, between commas."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def check_head_places(names: Sequence[str]) -> list[str]:
    """The names without repeats; ValueError for one that is no head's."""
    for name in names:
        if not PLACE.fullmatch(name):
            raise ValueError(f"must name a layer and a head, as 5:11 (got {name})")
    return list(dict.fromkeys(names))


def named_head(name: str) -> NamedHead:
    """A head by its name, which was checked."""
    found = PLACE.fullmatch(name)
    assert found is not None
    return NamedHead(found[1] or "", int(found[2]), int(found[3]))
