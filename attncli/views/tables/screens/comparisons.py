"""The first screens of what compares: two reports, the wrong with the right way, the runs of a store."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import PLACES, Report, Table
from attncli.views import Display
from attncli.views.heading import first_note, heading
from attncli.views.labels import shortened
from attncli.views.matrices import matrices, matrices_of, place_names
from attncli.views.numbers import scalar
from attncli.views.tables.elements import Column, Grid, Paragraph, Section, TableLabels
from attncli.views.tables.screens.headlines import one_line, opening
from attncli.views.tables.screens.matrix_part import MatrixPart
from attncli.views.tables.statistic_tables import statistic_tables

NOTES, NOTES_OF_SURVEYS = 2, 4
# Of the matrix of a diff, where it says all, and where the rows or heads that changed follow.
DIFF_ROWS, FEW_DIFF_ROWS = 8, 3
MOST_CHANGED = 2
# The statistics below the weights of a diff; all, as far as they fit, where there are none.
DIFF_STATISTICS = ("scores.variance", "scaled_scores.variance", "entropy.mean", "max_weight.mean")
MOST_STATISTICS, MOST_HEADS = 16, 10
# Of each matrix of a mistake, where it is alone, and where a table follows.
PITFALL_ROWS, FEW_PITFALL_ROWS = 6, 3
MOST_LINES, MOST_FAILED = 18, 2


def comparison_screen(report: Report, display: Display) -> Iterator[Section]:
    """The settings that differ; the difference of the weights, of many heads that of the most changed."""
    yield Paragraph(heading(report), "title")
    count = NOTES if report.tensors else NOTES_OF_SURVEYS
    notes = [] if report.table("by_head") else map(plain_text, report.notes[1:count])
    for note in (first_note(report), *notes):
        yield Paragraph(shortened(note, 2 * (display.width or 0)), "line")
    left_out: list[str] = []
    if "difference" in report.tensors:
        part = _difference(report, display)
        yield part.grid
        yield Paragraph("Positive: B looks there more than A.", "line")
        left_out += part.left_out()
        changed = "by_head" if report.table("by_head") else "changed_rows"
        is_whole = not report.table("by_head") and not left_out
        statistics = {} if is_whole else {changed: Table(report.table(changed)[:MOST_CHANGED])}
        rows = [row for row in report.table("side_by_side") if row["statistic"] in DIFF_STATISTICS]
    else:
        heads = "changed_heads" if report.table("changed_heads") else "heads_difference"
        statistics = {heads: Table(report.table(heads)[:MOST_HEADS])}
        rows = report.table("side_by_side")[: MOST_STATISTICS - len(statistics[heads])]
    shown = {name: table for name, table in {**statistics, "side_by_side": Table(rows)}.items() if table}
    counts = {f"rows of {name}": len(report.table(name)) - len(table) for name, table in shown.items()}
    for grid in statistic_tables(replace(report, statistics=shown), display, TableLabels(report, display)):
        first = grid.first_group(display.width)
        counts[f"columns of {grid.title}"] = len(grid.columns) - len(first.columns)
        yield first
    left_out += [f"{count} {name}" for name, count in counts.items() if count]
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show all.", "note")


def _difference(report: Report, display: Display) -> MatrixPart:
    """B - A of the weights; of the head that changed most where there are several."""
    found = list(matrices_of(report, "difference", report.tensors["difference"]))
    heads = report.table("by_head")
    place = tuple(
        (axis, int(str(head[axis]))) for head in heads[:1] for axis in head if axis in ("batch", *PLACES)
    )
    matrix = next((matrix for matrix in found if matrix.place == place), found[0])
    title = ", ".join(["weights of B minus those of A", *place_names(matrix.place)])
    if not np.nan_to_num(matrix.values).any():
        title += " (no weight changed)"
    elif heads:
        title += " (changed most)"
    return MatrixPart(report, {"": matrix}, display, title, FEW_DIFF_ROWS if heads else DIFF_ROWS)


def pitfalls_screen(report: Report, display: Display) -> Iterator[Section]:
    """Two lines for each mistake; of one mistake the sentences, its numbers, and wrong and right rows."""
    yield from opening(report, display)
    if table := report.table("pitfalls"):
        yield _mistakes(table, display)
        return
    for note in report.notes:
        yield Paragraph(plain_text(note), "line")
    wrong, right = report.numbers("wrong"), report.numbers("right")
    for name in wrong:
        numbers = [scalar(side[name], display.precision) for side in (wrong, right)]
        yield Paragraph(f"{name.replace('_', ' ')}: {numbers[0]} wrong, {numbers[1]} right", "bold")
    tables = {name: found for name, found in report.statistics.items() if isinstance(found, Table)}
    yield _wrong_and_right(report, display, FEW_PITFALL_ROWS if tables else PITFALL_ROWS)
    yield from statistic_tables(replace(report, statistics=tables), display, TableLabels(report, display))


def _mistakes(table: Table, display: Display) -> Grid:
    """Each mistake in words, and below it the number that exposes it."""
    names, lines = [], []
    for row in table:
        wrong, right = (scalar(row[side], display.precision) for side in ("wrong", "right"))
        statistic = plain_text(str(row["figure"])).replace("_", " ")
        names += [plain_text(str(row["pitfall"])), ""]
        lines += [plain_text(str(row["mistake"])), f"{statistic} {wrong}, not {right}"]
    return Grid("", Column(("pitfall",), names, left=True), [Column(("what goes wrong",), lines, left=True)])


def _wrong_and_right(report: Report, display: Display, rows: int) -> Grid:
    """The first rows of the wrong matrix and of the right one."""
    name, pair = next(reversed(report.pairs.items()), ("weights", ("weights",)))
    found = {
        matrix.name.removesuffix(name).strip("_"): matrix
        for matrix in matrices(report)
        if matrix.name in pair
    }
    part = MatrixPart(report, found, display, "", rows)
    left_out = ", ".join(part.left_out())
    axes = " × ".join(part.axes)
    return replace(part.grid, title=f"{name} ({axes})" + (f" without {left_out}" if left_out else ""))


def results_screen(report: Report, display: Display) -> Iterator[Section]:
    """The first rows, without the groups where there is only one; a few failed runs; what is left out."""
    yield one_line(f"results: {report.spec['store']}", display, "title")
    for note in report.notes:
        yield Paragraph(plain_text(note), "line")
    summary, failed = report.table("summary"), report.table("failed")[:MOST_FAILED]
    same = {name for name in report.spec["group_by"] if len({row[name] for row in summary}) == 1}
    rows = [{name: cell for name, cell in row.items() if name not in same} for row in summary]
    # A second table takes its rows, a blank line, title, header and rule.
    most = MOST_LINES - bool(failed) * (len(failed) + 4)
    shown = {"summary": Table(rows[:most]), "failed": Table(failed)}
    statistics = {name: table for name, table in shown.items() if table}
    part = replace(report, statistics=statistics, tensors={})
    for grid in statistic_tables(part, display, TableLabels(report, display)):
        yield grid.first_group(display.width)
    left_out = {"rows": len(rows) - most, "failed runs": len(report.table("failed")) - len(failed)}
    if counts := ", ".join(f"{count} {name}" for name, count in left_out.items() if count > 0):
        yield Paragraph(
            f"Not shown: {counts}; --statistic NAME, --group-by, --top N, or -o summary.csv.", "note"
        )
