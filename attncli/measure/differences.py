"""Two sequences of tokens as one: what both have is there once, what one has is a gap in the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

from attncli.errors import UserError

ARROW = " → "


@dataclass(frozen=True)
class Alignment:
    """The tokens of both sides in one order, and the position of each on either side; -1 for none.

    A token that replaced another one is named as `cat → dog`.
    """

    tokens: tuple[str, ...]
    a: np.ndarray
    b: np.ndarray

    @property
    def num_shared(self) -> int:
        """Places that both sides have."""
        return int(((self.a >= 0) & (self.b >= 0)).sum())


def align(a: Sequence[str], b: Sequence[str]) -> Alignment:
    """The longest common runs come first; between them, runs of equal length correspond to each other."""
    tokens: list[str] = []
    places: list[tuple[int, int]] = []
    for kind, i, last_i, j, last_j in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "replace" and last_i - i == last_j - j:
            tokens += [f"{x}{ARROW}{y}" for x, y in zip(a[i:last_i], b[j:last_j], strict=True)]
            places += zip(range(i, last_i), range(j, last_j), strict=True)
        elif kind == "equal":
            tokens += a[i:last_i]
            places += zip(range(i, last_i), range(j, last_j), strict=True)
        else:
            tokens += [*a[i:last_i], *b[j:last_j]]
            places += [*((n, -1) for n in range(i, last_i)), *((-1, n) for n in range(j, last_j))]
    where = np.array(places, dtype=np.int64).reshape(-1, 2)
    return Alignment(tuple(tokens), where[:, 0], where[:, 1])


def align_positions(axis: str, a: int, b: int) -> Alignment:
    """Places without tokens: they correspond, if there are as many; UserError if not."""
    if a != b:
        raise UserError(f"diff: A has {a} entries along {axis} and B has {b}, and no tokens to align them by")
    return Alignment((), np.arange(a), np.arange(b))
