"""What people call heads and tokens: LAYER:HEAD, a position, a text, the second of its kind."""

import re
from collections.abc import Callable, Mapping, Sequence
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


NUMBERED = re.compile(r"(?:doc|source|sentence|line|paragraph|turn)([0-9]{1,6})")


def source_number(name: str) -> int | None:
    """2 for doc2, as the sources of an answer are called; None for another name."""
    found = NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


LAST = "last"
POSITION = re.compile(r"-?[0-9]{1,9}")
OCCURRENCE = re.compile(r"(.+)#([0-9]{1,9})", re.DOTALL)

Occurrences = Callable[[str], Sequence[Sequence[int]]]
"""Each place where a text stands: the positions of its tokens, one or, of a word, several."""


def occurrences_among(tokens: Sequence[str]) -> Occurrences:
    """The positions of the tokens that are a text."""
    return lambda text: [(i,) for i, token in enumerate(tokens) if token == text]


def token_positions(name: str, num_tokens: int, occurrences: Occurrences) -> tuple[int, ...]:
    """The positions that a name means: every one of a text, or none where no token has that name.

    A whole number and `last` are positions, those below 0 from the end. Anything else is a text: as it
    stands, else without the quotes around it ("last", "5"), else with the number of its place (to#2).
    ValueError for a position or a number that there is not.
    """
    if name == LAST or POSITION.fullmatch(name):
        position = -1 if name == LAST else int(name)
        if not -num_tokens <= position < num_tokens:
            raise ValueError(
                f"must be a position from 0 to {num_tokens - 1}, or from -1 to -{num_tokens}, counted from "
                f"the end (got {name})"
            )
        return (position % num_tokens,)
    found = _of_text(name, occurrences)
    if not found and (numbered := OCCURRENCE.fullmatch(name)) is not None:
        text, number = numbered[1], int(numbered[2])
        found = _of_text(text, occurrences)
        if found and not 1 <= number <= len(found):
            last = f" to {text}#{len(found)}" if len(found) > 1 else ""
            raise ValueError(f"must be {text}#1{last}: the text has {len(found)} of them (got {name:.60})")
        found = found[number - 1 : number]
    return tuple(sorted({position for place in found for position in place}))


def _of_text(text: str, occurrences: Occurrences) -> Sequence[Sequence[int]]:
    found = occurrences(text)
    is_quoted = len(text) > 2 and text[0] == text[-1] == '"'
    return found if found or not is_quoted else occurrences(text[1:-1])


def the_one_position(name: str, positions: Sequence[int]) -> int:
    """The only position that a name means; ValueError where there are several."""
    if len(positions) > 1:
        several = ", ".join(map(str, positions))
        raise ValueError(f"must be one token: {name:.60} is at {several}: give a position")
    return positions[0]
