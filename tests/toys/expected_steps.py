"""The expected content of a step: every value, cell and total, and nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attncli.records.report import Step, Terms

Column = Sequence[Any]


@dataclass
class Expected:
    """A step's values, its tables (a column by name, whole) and the totals of each by row and column."""

    values: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Column]] = field(default_factory=list)
    totals: list[dict[str, dict[str, Any]]] = field(default_factory=list)

    def table(self, columns: Mapping[str, Column], **totals: Mapping[str, Any]) -> "Expected":
        self.tables.append(dict(columns))
        self.totals.append({name: dict(total) for name, total in totals.items()})
        return self


def assert_step(step: Step, expected: Expected) -> None:
    """Check that every value, cell and total is as expected, and that there are no others."""
    assert step.values.keys() == expected.values.keys(), step.title
    for name, value in step.values.items():
        _assert_same(value, expected.values[name], f"{step.title}: {name}")
    assert len(step.tables) == len(expected.tables), step.title
    for table, columns, totals in zip(step.tables, expected.tables, expected.totals, strict=True):
        _assert_table(table, columns, totals)


def _assert_table(table: Terms, columns: dict[str, Column], totals: dict[str, dict[str, Any]]) -> None:
    assert list(table.columns) == list(columns), table.title
    index = list(columns[table.columns[0]])
    assert table.count == len(index) >= len(table.rows) > 0
    shown = [index.index(row[0]) for row in table.rows]
    assert shown == sorted(set(shown))
    for row, place in zip(table.rows, shown, strict=True):
        for name, cell in zip(table.columns, row, strict=True):
            _assert_same(cell, columns[name][place], f"{table.title}: {name}, row {place}")
    assert [total[0] for total in table.totals] == list(totals), table.title
    for total in table.totals:
        for name, cell in zip(table.columns[1:], total[1:], strict=True):
            _assert_same(cell, totals[str(total[0])].get(name, ""), f"{table.title}: {total[0]}, {name}")


def _assert_same(actual: Any, expected: Any, what: str) -> None:
    if isinstance(expected, str) or expected is None or isinstance(expected, bool):
        assert actual == expected, what
    elif not math.isfinite(expected):
        assert actual is None, what
    elif "largest difference" in what:
        # Rounding itself: computed in another order it is another number of its size.
        assert abs(actual - expected) <= 1e-5 * max(1.0, abs(expected)), what
        assert actual < 1e-3, what
    else:
        assert actual is not None and math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12), (
            f"{what}: {actual} for {expected}"
        )


def dot(left: np.ndarray, right: np.ndarray) -> float:
    """A dot product by fsum, which does not depend on the order of summation."""
    return math.fsum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def products(axis: str, left: tuple[str, np.ndarray], right: tuple[str, np.ndarray]) -> tuple[Any, Any]:
    """The columns of a dot product written out, and its total."""
    columns = {
        axis: range(len(left[1])),
        left[0]: left[1],
        right[0]: right[1],
        "product": [a * b for a, b in zip(left[1], right[1], strict=True)],
    }
    return columns, {"product": dot(left[1], right[1])}


def differ(worked: Any, reported: Any) -> float:
    """The largest difference between numbers that are finite on both sides."""
    pairs = zip(np.ravel(worked), np.ravel(reported), strict=True)
    return max((abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)), default=0.0)
