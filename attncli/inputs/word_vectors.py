"""Word vectors from a text file in GloVe's format: `word v1 v2 ...`, one word a line.

Pennington, Socher and Manning 2014, GloVe: Global Vectors for Word Representation. The file is streamed and
only the lines of wanted words are parsed, so that 400,000 x 50 takes well under a second.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from attncli.errors import UserError
from attncli.inputs.embeddings import Vocabulary

SHOWN_UNKNOWN = 5


def read_word_vectors(path: Path, tokens: Sequence[str], dim: int, *, unknown: str) -> Vocabulary:
    """The vectors of the tokens' words; a word that the file lacks is an error, or zeros with unknown="zero".

    Words of the file may hold blanks themselves (`. . .`), so a line is split from the right.
    """
    words = sorted(set(tokens))
    missing = {word.encode() for word in words}
    found: dict[bytes, np.ndarray] = {}
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.partition(b" ")[0] not in missing:
                continue
            word, *fields = line.rstrip(b"\r\n ").rsplit(b" ", dim)
            if word not in missing:
                continue
            if len(fields) != dim:
                raise UserError(f"{path}:{number}: holds {len(fields)} numbers where other lines hold {dim}")
            try:
                vector = np.array(fields, dtype=np.float32)
            except ValueError:
                raise UserError(f"{path}:{number}: is not a word and {dim} numbers") from None
            if not np.isfinite(vector).all():
                raise UserError(f"{path}:{number}: holds a number that is not finite")
            found[word] = vector
            missing.remove(word)
            if not missing:
                break
    if missing and unknown == "error":
        names = [word.decode() for word in sorted(missing)]
        shown = ", ".join(names[:SHOWN_UNKNOWN]) + (", ..." if len(names) > SHOWN_UNKNOWN else "")
        message = f"embedding: {path} has no vector for {shown}"
        raise UserError(f"{message}; `unknown: zero` uses zeros instead")
    zeros = np.zeros(dim, dtype=np.float32)
    table = np.stack([found.get(word.encode(), zeros) for word in words])
    return Vocabulary(tuple(words), torch.from_numpy(table))
