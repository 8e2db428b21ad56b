"""The first screen of a diff: which settings differ, where B looks more than A, and what the numbers do."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attncli.plain_text import plain_text
from attncli.report import PLACES, Report, Table
from attncli.views import Display
from attncli.views.heading import first_note, heading
from attncli.views.labels import shortened
from attncli.views.matrices import matrices_of, place_names
from attncli.views.tables.elements import Paragraph, Section
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.screens.matrix_part import MatrixPart
from attncli.views.tables.statistic_tables import statistic_tables

NOTES, NOTES_OF_SURVEYS = 2, 4
ROWS, FEW_ROWS = 8, 3  # Of the matrix where it says all, and where the rows or heads that moved follow.
MOVED = 2
# The statistics that stand below weights; all, as far as they fit, where there are none.
TOLD = ("scores.variance", "scaled_scores.variance", "entropy.mean", "max_weight.mean")
MOST_STATISTICS, MOST_HEADS = 16, 10


def comparison_screen(report: Report, display: Display) -> Iterator[Section]:
    """The settings that differ; the difference of the weights, of many heads that of the most changed."""
    yield Paragraph(heading(report), "title")
    count = NOTES if report.tensors else NOTES_OF_SURVEYS
    notes = [] if report.table("by_head") else map(plain_text, report.notes[1:count])
    for note in (first_note(report), *notes):
        yield Paragraph(shortened(note, 2 * (display.width or 0)), "line")
    labels = TableLabels(report, display)
    left_out: list[str] = []
    moved = "by_head" if report.table("by_head") else "changed_rows"
    if "difference" in report.tensors:
        part = _difference(report, display)
        yield part.grid
        yield Paragraph("Positive: B looks there more than A.", "line")
        left_out += part.left_out()
        is_whole = not report.table("by_head") and not left_out
        statistics = {} if is_whole else {moved: Table(report.table(moved)[:MOVED])}
        rows = [row for row in report.table("side_by_side") if row["statistic"] in TOLD]
    else:
        heads = "changed_heads" if report.table("changed_heads") else "heads_difference"
        statistics = {heads: Table(report.table(heads)[:MOST_HEADS])}
        rows = report.table("side_by_side")[: MOST_STATISTICS - len(statistics[heads])]
    shown = {name: table for name, table in {**statistics, "side_by_side": Table(rows)}.items() if table}
    counts = {f"rows of {name}": len(report.table(name)) - len(table) for name, table in shown.items()}
    for grid in statistic_tables(replace(report, statistics=shown), display, labels):
        columns = grid.groups(display.width)[0]
        counts[f"columns of {grid.title}"] = len(grid.columns) - len(columns)
        yield replace(grid, columns=columns)
    left_out += [f"{count} {name}" for name, count in counts.items() if count]
    if left_out:
        yield Paragraph(f"Not shown: {', '.join(left_out)}. See --show all.", "note")


def _difference(report: Report, display: Display) -> MatrixPart:
    """B - A of the weights; of the head that moved most where there are several."""
    heads = report.table("by_head")
    place = (
        tuple((axis, int(str(heads[0][axis]))) for axis in heads[0] if axis in ("batch", *PLACES))
        if heads
        else ()
    )
    found = list(matrices_of(report, "difference", report.tensors["difference"]))
    matrix = next((matrix for matrix in found if matrix.place == place), found[0])
    title = ", ".join(["weights of B minus those of A", *place_names(matrix.place)])
    part = MatrixPart(report, {"": matrix}, display, title, FEW_ROWS if heads else ROWS)
    if not np.nan_to_num(matrix.values).any():
        part.grid = replace(part.grid, title=f"{title} (no weight changed)")
    elif heads:
        part.grid = replace(part.grid, title=f"{title} (changed most)")
    return part
