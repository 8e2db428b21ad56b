"""JSON documents one after another; errors name the line and column."""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from attncli.errors import UserError

BLANKS = re.compile(r"[ \t\r\n]*")
TEXT = r'"(?:[^"\\]|\\.)*"'
NO_NUMBER = re.compile(rf"{TEXT}|(NaN|-?Infinity)")


class _NoNumber(ValueError):
    """NaN or Infinity, which JSON does not have."""


class _Twice(ValueError):
    """A name that occurs twice in one object."""


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in found if names.count(name) > 1))
    return found


def _refuse_constant(constant: str) -> Any:
    raise _NoNumber(constant)


DECODER = json.JSONDecoder(object_pairs_hook=_mapping, parse_constant=_refuse_constant)


def documents(text: str, name: str) -> Iterator[Any]:
    """Each JSON value of the text: one, or several separated by blanks or line breaks (JSON Lines)."""
    end = _skip_blanks(text, 0)
    if end == len(text):
        raise UserError(f"{name}: is empty: it holds no report")
    while end < len(text):
        try:
            data, end = DECODER.raw_decode(text, end)
        except (ValueError, RecursionError) as error:
            raise UserError(_line(text, name, error)) from None
        yield data
        end = _skip_blanks(text, end)


def _skip_blanks(text: str, start: int) -> int:
    blanks = BLANKS.match(text, start)
    assert blanks is not None, "it also matches no blanks"
    return blanks.end()


def _line(text: str, name: str, error: Exception) -> str:
    """What the decoder raised, as one line that says where."""
    match error:
        case json.JSONDecodeError():
            if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
                return f"{_place(text, name, error.pos)}: is not valid JSON: it ends too soon"
            reason = error.msg.removesuffix(" at")
            return f"{_place(text, name, error.pos)}: is not valid JSON: {reason[0].lower()}{reason[1:]}"
        case _NoNumber():
            start = _first(NO_NUMBER, text)
            return f"{_place(text, name, start)}: {error} is not JSON: a missing number is null"
        case _Twice():
            return f"{name}: holds {str(error)!r} twice in one object"
        case RecursionError():
            return f"{name}: is nested too deeply for a report"
    most = sys.get_int_max_str_digits()
    start = _first(re.compile(rf"{TEXT}|(-?[0-9]{{{most + 1},}})"), text)
    return f"{_place(text, name, start)}: holds a number of more than {most} digits"


def _first(pattern: re.Pattern[str], text: str) -> int:
    """Where the pattern's group first matches outside of texts."""
    return next((match.start() for match in pattern.finditer(text) if match[1]), 0)


def _place(text: str, name: str, position: int) -> str:
    line = text.count("\n", 0, position) + 1
    return f"{name}:{line}:{position - text.rfind(chr(10), 0, position)}"
