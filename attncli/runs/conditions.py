"""Conditions on statistics, `NAME OP NUMBER`: parsed for --where, and checked in every run for --expect."""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from attncli.errors import UserError, nearest
from attncli.runs.report_values import Columns
from attncli.settings.fields import SUMMARIES, Spec

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
FOR_TEXTS = ("=", "==", "!=")
FORM = re.compile(r"\s*([\w.\-]+)\s*(<=|>=|==|!=|<|>|=)\s*(.*?)\s*")
PLACES = ("layer", "head", "batch", "token")
STACK = re.compile(r"^(encoder|decoder)\.(self|cross)\.")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class Condition(NamedTuple):
    """A name, a comparison, and what to compare with: a number or None, and the text as it was typed."""

    name: str
    operator: str
    number: float | None
    text: str

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.text}"

    def holds(self, found: Any) -> Any:
        """Whether it holds for a value, or for each number of an array; never for a missing number."""
        compare = OPERATORS[self.operator]
        if self.number is not None and not isinstance(found, str):
            if found is None or isinstance(found, bool):
                return False
            # NaN != x is true in floating point; here a missing number satisfies nothing.
            return compare(found, self.number) & (found == found)
        if self.operator not in FOR_TEXTS:
            return False
        # YAML reads True as true, and so does this.
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
    """The conditions of texts like `entropy.mean < 2`; UserError for those that are not conditions."""
    conditions, errors = [], []
    for text in texts:
        match = FORM.fullmatch(text)
        value = _number(match[3]) if match else None
        if match is None or not match[3]:
            errors.append(f"{flag} {text!r}: must be a name, one of {' '.join(OPERATORS)}, and a value")
        elif value is None and numbers_only:
            errors.append(f"{flag} {text!r}: must end in a number (got {match[3]})")
        elif value is None and match[2] not in FOR_TEXTS:
            errors.append(f"{flag} {text!r}: a text is compared with = or != (got {match[2]})")
        else:
            conditions.append(Condition(match[1], match[2], value, match[3]))
    if errors:
        raise UserError(*errors)
    return tuple(conditions)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number else None


def listed(names: Iterable[str]) -> str:
    """Names for an error, those with the same endings together: `entropy, distance (.mean .min .max)`."""
    endings: dict[str, list[str]] = {}
    for name in names:
        stem, dot, ending = name.rpartition(".")
        endings.setdefault(stem or name, []).append(dot + ending if stem else "")
    stems: dict[tuple[str, ...], list[str]] = {}
    for stem, of_stem in endings.items():
        stems.setdefault(tuple(of_stem), []).append(stem)
    return "; ".join(", ".join(alike) + _endings(*of_stem) for of_stem, alike in stems.items())


def _endings(*endings: str) -> str:
    return f" ({' '.join(ending or 'alone' for ending in endings)})" if any(endings) else ""


def as_declared(name: str) -> str:
    """A statistic as a Spec names it: N for a place in a list, without the stack of a head in a survey."""
    return NUMBER.sub("N", STACK.sub("", name))


def _declared(spec: Spec, rows: bool) -> Iterator[str]:
    yield from spec.single_statistics()
    for row in spec.row_statistics():
        yield from (f"{row}.{how}" for how in SUMMARIES)
        if rows:
            yield row


def refuse_unknown(conditions: Sequence[Condition], specs: Iterable[Spec], *, rows: bool) -> None:
    """UserError for statistics that no experiment will have; with `rows` every row is kept."""
    missing, known = list(conditions), dict[str, None]()
    for spec in specs:
        if not missing:
            return
        known |= dict.fromkeys(_declared(spec, rows))
        missing = [condition for condition in missing if as_declared(condition.name) not in known]
    if missing:
        raise UserError(
            *(
                f"--expect '{condition}': no run will have {condition.name}"
                f"{nearest(condition.name, known)}; known: {listed(known)}"
                for condition in missing
            )
        )


class Expectations:
    """The conditions that every run must meet, and which of them had anything to check."""

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = conditions
        self._places: dict[Columns, dict[Condition, list[int]]] = {}

    def broken(self, columns: Columns, values: np.ndarray) -> list[str]:
        """A line for each expectation that does not hold: `expected entropy.mean < 2: got 2.3 in head 4`."""
        if columns not in self._places:
            self._places[columns] = {
                condition: [i for i, column in enumerate(columns) if column.statistic == condition.name]
                for condition in self.conditions
            }
        lines = []
        for condition, places in self._places[columns].items():
            found = values[places]
            wrong = np.flatnonzero(~np.asarray(condition.holds(found), dtype=bool))
            if len(wrong):
                column, value = columns[places[wrong[0]]], float(found[wrong[0]])
                indices = [(axis, getattr(column, axis)) for axis in PLACES]
                where = "".join(f" in {axis} {index}" for axis, index in indices if index is not None)
                more = f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                number = "no number" if np.isnan(value) else repr(value)
                lines.append(f"expected {condition}: got {number}{where}{more}")
        return lines

    def unmet(self) -> list[str]:
        """A line for each condition whose statistic no run had: a condition that checks nothing must fail."""
        names = {column.statistic for columns in self._places for column in columns}
        return [
            f"--expect '{condition}': no run has {condition.name}{nearest(condition.name, names)}"
            for condition in self.conditions
            if condition.name not in names
        ]
