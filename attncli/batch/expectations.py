"""`--expect`: what must hold of every run that has the statistic."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from attncli.batch.conditions import Condition, listed
from attncli.batch.store.columns import Columns
from attncli.errors import UserError, nearest
from attncli.spec.fields import SUMMARIES, Spec

PLACES = ("layer", "head", "batch", "token")
STACK = re.compile(r"^(encoder|decoder)\.(self|cross)\.")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def as_declared(name: str) -> str:
    """A statistic as a Spec names it: N for a place in a list, without the stack of a survey's heads."""
    return NUMBER.sub("N", STACK.sub("", name))


def _declared(spec: Spec, rows: bool) -> Iterator[str]:
    yield from spec.single_statistics()
    for row in spec.row_statistics():
        yield from (f"{row}.{how}" for how in SUMMARIES)
        if rows:
            yield row


def refuse_unknown(conditions: Sequence[Condition], specs: Iterable[Spec], *, rows: bool) -> None:
    """UserError for statistics that none of these experiments will have; with `rows` every row is kept."""
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

    def broken(self, columns: Columns, figures: np.ndarray) -> list[str]:
        """A line for each expectation that does not hold: `expected entropy.mean < 2: got 2.3 in head 4`."""
        if columns not in self._places:
            self._places[columns] = {
                condition: [i for i, column in enumerate(columns) if column.statistic == condition.name]
                for condition in self.conditions
            }
        lines = []
        for condition, places in self._places[columns].items():
            values = figures[places]
            wrong = np.flatnonzero(~np.asarray(condition.holds(values), dtype=bool))
            if len(wrong):
                column, value = columns[places[wrong[0]]], float(values[wrong[0]])
                found = [(axis, getattr(column, axis)) for axis in PLACES]
                where = "".join(f" in {axis} {index}" for axis, index in found if index is not None)
                more = f" (and in {len(wrong) - 1} more)" if len(wrong) > 1 else ""
                number = "no number" if np.isnan(value) else repr(value)
                lines.append(f"expected {condition}: got {number}{where}{more}")
        return lines

    def unmet(self) -> list[str]:
        """A line for each condition whose statistic no run had: what checks nothing must not pass."""
        names = {column.statistic for columns in self._places for column in columns}
        return [
            f"--expect '{condition}': no run has {condition.name}{nearest(condition.name, names)}"
            for condition in self.conditions
            if condition.name not in names
        ]
