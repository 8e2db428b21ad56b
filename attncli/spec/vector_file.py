"""The size of the vectors in a word-vector text file, from its first lines."""

from itertools import islice
from pathlib import Path

SAMPLED_LINES = 20


def trailing_numbers(fields: list[str]) -> int:
    """How many numbers end a line; the rest is the word, which may hold blanks and look like a number."""
    count = 0
    for field in reversed(fields[1:]):
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def vector_file_dim(path: Path) -> int:
    """Numbers on a line of a GloVe file (`word v1 v2 ...`), so that embed_dim needs not be given.

    A word may itself end in numbers, so the shortest of the first lines counts. ValueError where the file
    cannot be read or its first lines are no word vectors.
    """
    if not path.exists():
        raise ValueError(f"no such file: {path} (or one of random, gaussian, integers, previous)")
    if not path.is_file():
        raise ValueError(f"must be a word-vector file (got {path}, which is not one)")
    try:
        with path.open(encoding="utf-8-sig") as lines:
            fields = [line.rstrip().split(" ") for line in islice(lines, SAMPLED_LINES) if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8 text (got {path}, byte {error.start} is not)") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {path}: {error.strerror}") from None
    if len(fields) > 1 and len(fields[0]) == 2 and len(fields[1]) != 2:
        raise ValueError(f"{path}: the first line is a word2vec header, not a word and its vector: remove it")
    dim = min(map(trailing_numbers, fields), default=0)
    if dim < 1:
        raise ValueError(f"{path}: is not a word-vector file: its lines must be a word and numbers")
    return dim
