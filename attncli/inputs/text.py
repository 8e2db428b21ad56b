"""Text to tokens."""

import sys
from collections.abc import Callable
from pathlib import Path

from attncli.errors import UserError

DROPPED = str.maketrans("", "", ',;.!?:"()')

TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": lambda text: text.lower().translate(DROPPED).split(),
    "whitespace": str.split,
}


def read_text(file: str) -> str:
    """The UTF-8 text of a file, or of standard input for `-`."""
    try:
        if file == "-" and sys.stdin is None:
            raise UserError("file: standard input is closed")
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"file: cannot be read: {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"file: is not UTF-8 text: {file} (byte {error.start})") from None


def tokenize(text: str, tokenizer: str, *, key: str) -> list[str]:
    """The tokens of a text; UserError that names the setting `key` where there are none."""
    tokens = TOKENIZERS[tokenizer](text)
    if not tokens:
        raise UserError(
            f"{key}: no tokens left after punctuation was removed (tokenizer: whitespace keeps it)"
        )
    return tokens
