"""The first screens of `pitfalls`: every mistake in two lines, and one of them wrong beside right."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attncli.plain_text import plain_text
from attncli.records.columns import Records
from attncli.records.demonstrations import MistakeComparison, MistakeLine, Mistakes
from attncli.report import Report
from attncli.views import Display
from attncli.views.first_screen import FirstScreen, Special
from attncli.views.matrices import Matrix, matrices
from attncli.views.screens import LEAST_ROWS, MOST_ROWS, MatrixPart, Opening
from attncli.views.sections import (
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    TableLabels,
    statistic_tables,
)
from attncli.views.texts import scalar

# Of each matrix of a mistake, where it is alone, and where a table follows.
PITFALL_ROWS, FEW_PITFALL_ROWS = 6, 3


def _every_mistake(report: Report, display: Display) -> ScreenParts:
    """Two lines for each mistake."""
    lines = report.result_of(Mistakes).pitfalls
    yield Elastic(lambda count: [_mistakes(lines[:count], display)], len(lines), least=1)


def _mistake(report: Report, display: Display) -> ScreenParts:
    """The sentences about a mistake, its numbers, and wrong and right rows."""
    result = report.result_of(MistakeComparison)
    for note in report.sentences:
        yield Paragraph(plain_text(note), "line")
    for name, wrong in result.wrong.items():
        numbers = [scalar(number, display.precision) for number in (wrong, result.right.get(name))]
        yield Paragraph(f"{name.replace('_', ' ')}: {numbers[0]} wrong, {numbers[1]} right", "bold")
    tables = {"growth": result.growth, "readings": result.readings}
    further = {name: table for name, table in tables.items() if table}
    rows = FEW_PITFALL_ROWS if further else PITFALL_ROWS
    shared_name, pair = next(reversed(report.pairs.items()), ("weights", ("weights",)))
    if compared := [matrix for matrix in matrices(report) if matrix.name in pair]:
        part = partial(_wrong_and_right, report, shared_name, compared, display)
        yield Elastic(lambda most: [part(most)], rows, least=1, most=MOST_ROWS)
    for name, table in further.items():
        yield Elastic(
            partial(_first_rows, report, name, table, display),
            len(table),
            min(LEAST_ROWS, len(table)),
            rank=1,
        )


def _first_rows(
    report: Report, name: str, table: Records[Any], display: Display, count: int
) -> Iterator[Grid]:
    return statistic_tables({name: table[:count]}, display, TableLabels(report, display))


def _mistakes(table: Records[MistakeLine], display: Display) -> Grid:
    """Each mistake in words, and below it the number that exposes it."""
    names, lines = [], []
    for row in table:
        wrong, right = (scalar(number, display.precision) for number in (row.wrong, row.right))
        statistic = plain_text(row.figure).replace("_", " ")
        names += [plain_text(row.pitfall), ""]
        lines += [plain_text(row.mistake), f"{statistic} {wrong}, not {right}"]
    return Grid("", Column(("pitfall",), names, left=True), [Column(("what goes wrong",), lines, left=True)])


def _wrong_and_right(
    report: Report, name: str, compared: Sequence[Matrix], display: Display, rows: int
) -> Grid:
    """The first rows of the wrong matrix and of the right one."""
    sides = {matrix.name.removesuffix(name).strip("_"): matrix for matrix in compared}
    part = MatrixPart(report, sides, display, "", rows)
    left_out = ", ".join(part.left_out())
    axes = " × ".join(part.axes)
    return replace(part.grid, title=f"{name} ({axes})" + (f" without {left_out}" if left_out else ""))


MISTAKES_SCREEN = FirstScreen(Mistakes, (Opening(), Special(_every_mistake)))
MISTAKE_SCREEN = FirstScreen(MistakeComparison, (Opening(), Special(_mistake)))
