"""`NAME OP NUMBER`: a condition on statistics (and settings), as --expect and --where take it."""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from attncli.errors import UserError

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
FORM = re.compile(r"\s*([\w.\-]+)\s*(<=|>=|==|!=|<|>|=)\s*(.*?)\s*")


class Condition(NamedTuple):
    """A name, a comparison and what to compare with: a number, or None, and the text as it was written."""

    name: str
    operator: str
    number: float | None
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.text}"

    def holds(self, found: Any) -> Any:
        """Whether it holds of a value, or of each of an array of numbers; never for no number."""
        compare = OPERATORS[self.operator]
        if self.number is not None and not isinstance(found, str):
            if found is None or isinstance(found, bool):
                return False
            # NaN != x is true of floats; here what is no number satisfies nothing.
            return compare(found, self.number) & (found == found)
        if self.operator not in ("=", "==", "!="):
            return False
        # YAML takes True for true, and so does this.
        return compare(_text(found), self.text.lower() if isinstance(found, bool) else self.text)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_conditions(texts: Iterable[str], flag: str, *, numbers_only: bool) -> tuple[Condition, ...]:
    """The conditions that texts like `entropy.mean < 2` name; UserError for one that is none."""
    conditions, errors = [], []
    for text in texts:
        match = FORM.fullmatch(text)
        value = _number(match[3]) if match else None
        if match is None or not match[3]:
            errors.append(f"{flag} {text!r}: must be a name, one of {' '.join(OPERATORS)}, and a value")
        elif value is None and numbers_only:
            errors.append(f"{flag} {text!r}: must end in a number (got {match[3]})")
        elif value is None and match[2] not in ("=", "==", "!="):
            errors.append(f"{flag} {text!r}: a text is compared with = or != (got {match[2]})")
        else:
            conditions.append(Condition(match[1], match[2], value, match[3]))
    if errors:
        raise UserError(*errors)
    return tuple(conditions)


def listed(names: Iterable[str]) -> str:
    """Names for an error, those with the same endings together: `entropy, distance (.mean .min .max)`."""
    endings: dict[str, list[str]] = {}
    for name in names:
        stem, dot, ending = name.rpartition(".")
        endings.setdefault(stem or name, []).append(dot + ending if stem else "")
    alike: dict[tuple[str, ...], list[str]] = {}
    for stem, of_stem in endings.items():
        alike.setdefault(tuple(of_stem), []).append(stem)
    return "; ".join(_with_endings(*each) for each in alike.items())


def _with_endings(endings: tuple[str, ...], stems: list[str]) -> str:
    shown = f" ({' '.join(ending or 'alone' for ending in endings)})" if any(endings) else ""
    return ", ".join(stems) + shown


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None
