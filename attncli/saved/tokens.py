"""The tokens of an array that somebody else computed: a line each, or a JSON list of texts."""

import json

from attncli.errors import UserError
from attncli.saved.content import read_text


def read_tokens(file: str) -> tuple[str, ...]:
    """The tokens of a file, as they stand (an empty line is an empty token)."""
    text, name = read_text(file)
    listed = _json_list(text)
    if listed is not None:
        return listed
    if file.lower().endswith(".json"):
        raise UserError(f"{name}: must be a JSON list of texts")
    lines = text.removesuffix("\n").split("\n") if text else []
    if not lines:
        raise UserError(f"{name}: is empty: it holds no token")
    return tuple(line.removesuffix("\r") for line in lines)


def _json_list(text: str) -> tuple[str, ...] | None:
    """The texts of a JSON list; None for anything else: `[CLS]` is a fine token on a line."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not found or not all(isinstance(token, str) for token in found):
        return None
    return tuple(found)
