"""The first screens of `pitfalls`: every mistake in two lines, or one mistake with wrong beside right."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from attncli.features.pitfalls.results import MistakeComparison, MistakeLine, Mistakes
from attncli.records.columns import Records
from attncli.records.report import Report
from attncli.system.plain_text import counted, plain_text
from attncli.views import Display
from attncli.views.findings import number
from attncli.views.first_screen import FirstRows, FirstScreen, Ranked, Sentences, Special, SpecialCells
from attncli.views.matrices import Matrix, matrices
from attncli.views.screens import MOST_ROWS, MatrixPart, Opening
from attncli.views.sections import Column, Elastic, Grid, ScreenParts
from attncli.views.texts import scalar

# The number of rows shown of each matrix, without and with a table below.
PITFALL_ROWS, FEW_PITFALL_ROWS = 6, 3


def _names(report: Report, rows: Records[MistakeLine], display: Display) -> list[Column]:
    """Each mistake's name, above an empty cell."""
    return [Column(("pitfall",), [cell for row in rows for cell in (plain_text(row.pitfall), "")], left=True)]


def _what_goes_wrong(report: Report, rows: Records[MistakeLine], display: Display) -> list[Column]:
    """Each mistake in words and, below it, the number that exposes it."""
    lines = []
    for row in rows:
        wrong, right = (scalar(number, display.precision) for number in (row.wrong, row.right))
        statistic = plain_text(row.figure).replace("_", " ")
        lines += [plain_text(row.mistake), f"{statistic} {wrong}, not {right}"]
    return [Column(("mistake and metric",), lines, left=True)]


def _about_it(report: Report, display: Display) -> Iterator[str]:
    yield from map(plain_text, report.sentences)


def _numbers(report: Report, display: Display) -> Iterator[str]:
    """The numbers that expose a mistake."""
    result = report.result_of(MistakeComparison)
    for name, wrong in result.wrong.items():
        numbers = [scalar(number, display.precision) for number in (wrong, result.right.get(name))]
        yield f"{name.replace('_', ' ')}: {numbers[0]} wrong, {numbers[1]} right"


def _wrong_beside_right(report: Report, display: Display) -> ScreenParts:
    """The rows of both matrices; fewer rows if a table follows."""
    result = report.result_of(MistakeComparison)
    rows = FEW_PITFALL_ROWS if result.growth or result.readings else PITFALL_ROWS
    shared_name, pair = next(reversed(report.pairs.items()), ("weights", ("weights",)))
    if compared := [matrix for matrix in matrices(report) if matrix.name in pair]:
        part = partial(_wrong_and_right, report, shared_name, compared, display)
        yield Elastic(lambda most: [part(most)], rows, least=1, most=MOST_ROWS)


def _wrong_and_right(
    report: Report, name: str, compared: Sequence[Matrix], display: Display, rows: int
) -> Grid:
    """The first rows of the wrong matrix and of the right matrix."""
    sides = {matrix.name.removesuffix(name).strip("_"): matrix for matrix in compared}
    part = MatrixPart(report, sides, display, "", rows)
    left_out = ", ".join(part.left_out())
    axes = " × ".join(part.axes)
    return replace(part.grid, title=f"{name} ({axes})" + (f" without {left_out}" if left_out else ""))


def _every_mistake(report: Report, display: Display) -> int:
    return len(report.result_of(Mistakes).pitfalls)


def _finding(report: Report) -> Iterator[str]:
    """Yield the number of mistakes, and the mistake whose number is farthest from the right one."""
    rows = report.result_of(Mistakes).pitfalls
    yield f"Each of {counted(len(rows), 'mistake')} shows in one number."
    if measured := rows.where(lambda row: row.wrong is not None and row.right is not None):
        row = max(measured, key=lambda row: abs((row.wrong or 0.0) - (row.right or 0.0)))
        name, figure = plain_text(row.pitfall), plain_text(row.figure).replace("_", " ")
        yield f"The largest change: {name} makes {figure} {number(row.wrong)} instead of {number(row.right)}."


MISTAKES_SCREEN = FirstScreen(
    Mistakes,
    (
        Opening(),
        Ranked(
            "pitfalls",
            (SpecialCells(_what_goes_wrong),),
            label=SpecialCells(_names),
            usual=_every_mistake,
            least=1,
        ),
    ),
    finding=_finding,
)
"""Two lines for each mistake."""


def _mistake_finding(report: Report) -> Iterator[str]:
    """Yield the mistake, and the numbers that differ."""
    result = report.result_of(MistakeComparison)
    if report.about:
        yield plain_text(report.about)
    texts = [
        f"{name.replace('_', ' ')} is {number(wrong)} instead of {number(result.right.number(name))}"
        for name, wrong in result.wrong.numbers().items()
        if name in result.right and wrong != result.right[name]
    ]
    text = "; ".join(texts)
    yield f"{text[0].upper()}{text[1:]}." if texts else "None of the numbers shows it."


MISTAKE_SCREEN = FirstScreen(
    MistakeComparison,
    (
        Opening(),
        Sentences(_about_it, "line"),
        Sentences(_numbers, "bold"),
        Special(_wrong_beside_right, "rows of two matrices are in one table"),
        FirstRows("growth"),
        FirstRows("readings"),
    ),
    finding=_mistake_finding,
)
"""The sentences about a mistake, its numbers, and wrong and right rows."""
