"""The size of the vectors in a word-vector text file, from its first lines."""

from itertools import islice
from pathlib import Path

SAMPLED_LINES = 20


def vector_file_dim(path: Path) -> int:
    """Numbers on a line of a GloVe file (`word v1 v2 ...`), so that embed_dim needs not be given.

    A word may hold blanks, so the shortest of the first lines counts. ValueError where the file cannot be
    read or its first lines are no word vectors.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            fields = [line.rstrip("\n ").split(" ") for line in islice(lines, SAMPLED_LINES)]
    except FileNotFoundError:
        raise ValueError(f"no such file: {path} (or one of random, gaussian, integers, previous)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read as UTF-8 text: {path}: {error}") from None
    if len(fields) > 1 and len(fields[0]) == 2 and len(fields[1]) != 2:
        raise ValueError(f"{path}: the first line is a word2vec header, not a word and its vector: remove it")
    dim = min((len(line) for line in fields), default=1) - 1
    if dim < 1:
        raise ValueError(f"{path}: is no word-vector file: its lines must be a word and numbers")
    return dim
