"""Word vectors from a text file in GloVe's format: `word v1 v2 ...`, one word per line.

Pennington, Socher and Manning 2014, GloVe: Global Vectors for Word Representation. The file is streamed and
only the lines of wanted words are parsed, so that 400,000 x 50 takes well under a second. No torch here: an
unknown word is reported before it is imported.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attncli.errors import UserError

SHOWN_UNKNOWN = 5
BOM = b"\xef\xbb\xbf"


class WordVectors(NamedTuple):
    """Sorted words and the vector of each, of shape (word, dim)."""

    words: tuple[str, ...]
    table: np.ndarray


def _numbers(fields: list[bytes]) -> np.ndarray | None:
    """float32, infinite where too large for it; None where a field is not a number."""
    try:
        wide = np.array(fields, dtype=np.float64)
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        return wide.astype(np.float32)


def _vector(
    path: Path, number: int, line: bytes, wanted: set[bytes], dim: int
) -> tuple[bytes, np.ndarray] | None:
    """The word of a line and its vector, if it is wanted; UserError where the vector is damaged."""
    word, *fields = line.rsplit(b" ", dim)
    if len(fields) != dim or word not in wanted:
        # A wanted word comes first: if only numbers follow, their count is wrong; else the word is longer.
        rest = line.split(b" ")[1:]
        if _numbers(rest) is None and len(fields) == dim:
            return None
        raise UserError(f"{path}:{number}: holds {len(rest)} numbers where other lines hold {dim}")
    vector = _numbers(fields)
    if vector is None:
        raise UserError(f"{path}:{number}: is not a word and {dim} numbers")
    if not np.isfinite(vector).all():
        raise UserError(f"{path}:{number}: holds a number that is not finite in float32")
    return word, vector


def find_word_vectors(path: Path, words: Iterable[str], dim: int) -> dict[str, np.ndarray]:
    """The vectors of the words that are in the file; UserError where one of them is damaged.

    Words of the file may hold blanks themselves (`. . .`), so a line is split from the right.
    """
    missing = {word.encode() for word in words}
    found: dict[str, np.ndarray] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            line = line.removeprefix(BOM) if number == 1 else line
            if line.partition(b" ")[0] in missing:
                read = _vector(path, number, line.rstrip(), missing, dim)
                if read is not None:
                    found[read[0].decode()] = read[1]
                    missing.remove(read[0])
                if not missing:
                    break
    return found


def word_vectors(
    path: Path, tokens: Iterable[str], found: Mapping[str, np.ndarray], dim: int, *, unknown: str
) -> WordVectors:
    """The vectors of the tokens' words; one that was not found is an error, or zeros with unknown="zero"."""
    words = sorted(set(tokens))
    missing = [word for word in words if word not in found]
    if missing and unknown == "error":
        shown = ", ".join(missing[:SHOWN_UNKNOWN]) + (", ..." if len(missing) > SHOWN_UNKNOWN else "")
        raise UserError(f"embedding: {path} has no vector for {shown} (unknown zero would take zeros)")
    zeros = np.zeros(dim, dtype=np.float32)
    return WordVectors(tuple(words), np.stack([found.get(word, zeros) for word in words]))
