"""The first screens of the mistakes: what each does to one number, or one of them, wrong beside right."""

from collections.abc import Iterator
from dataclasses import replace

from attncli.plain_text import plain_text
from attncli.report import Report, Table
from attncli.views import Display
from attncli.views.matrices import matrices
from attncli.views.numbers import scalar
from attncli.views.tables.elements import Column, Grid, Paragraph, Section
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.screens.headlines import opening
from attncli.views.tables.screens.matrix_part import MatrixPart
from attncli.views.tables.statistic_tables import statistic_tables

# Rows of each matrix where it stands alone, and where a table follows.
ROWS, FEW_ROWS = 6, 3


def pitfalls_screen(report: Report, display: Display) -> Iterator[Section]:
    """Two lines for each mistake; of one mistake the sentences, its numbers, and wrong and right rows."""
    yield from opening(report, display)
    if table := report.table("pitfalls"):
        yield _summary(table, display)
        return
    for note in report.notes:
        yield Paragraph(plain_text(note), "line")
    wrong, right = report.numbers("wrong"), report.numbers("right")
    for name in wrong:
        numbers = [f"{scalar(side[name], display.precision)}" for side in (wrong, right)]
        yield Paragraph(f"{name.replace('_', ' ')}: {numbers[0]} wrong, {numbers[1]} right", "bold")
    tables = {name: found for name, found in report.statistics.items() if isinstance(found, Table)}
    yield _matrices(report, display, FEW_ROWS if tables else ROWS)
    yield from statistic_tables(replace(report, statistics=tables), display, TableLabels(report, display))


def _summary(table: Table, display: Display) -> Grid:
    """Each mistake in words, and below it the number that exposes it."""
    names, lines = [], []
    for row in table:
        wrong, right = (scalar(row[side], display.precision) for side in ("wrong", "right"))
        statistic = plain_text(str(row["figure"])).replace("_", " ")
        names += [plain_text(str(row["pitfall"])), ""]
        lines += [plain_text(str(row["mistake"])), f"{statistic} {wrong}, not {right}"]
    return Grid("", Column(("pitfall",), names, left=True), [Column(("what goes wrong",), lines, left=True)])


def _matrices(report: Report, display: Display, rows: int) -> Grid:
    """The first rows of what was computed wrongly, and of what is right."""
    name, sides = next(reversed(report.pairs.items()), ("weights", ("weights",)))
    found = {
        matrix.name.removesuffix(name).strip("_"): matrix
        for matrix in matrices(report)
        if matrix.name in sides
    }
    part = MatrixPart(report, found, display, "", rows)
    left_out = ", ".join(part.left_out())
    axes = " × ".join(part.axes)
    return replace(part.grid, title=f"{name} ({axes})" + (f" without {left_out}" if left_out else ""))
