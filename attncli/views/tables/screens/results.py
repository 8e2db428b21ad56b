"""The first screen of a store's summary: as many statistics as fit, in one group of columns."""

from collections.abc import Iterator
from dataclasses import replace

from attncli.plain_text import plain_text
from attncli.report import Report, Table
from attncli.views import Display
from attncli.views.labels import shortened
from attncli.views.tables.elements import Paragraph, Section
from attncli.views.tables.labels import TableLabels
from attncli.views.tables.statistic_tables import statistic_tables

MOST_LINES, MOST_FAILED = 18, 2


def results_screen(report: Report, display: Display) -> Iterator[Section]:
    """The first rows, without the groups where there is one; a few runs that failed; what is left out."""
    width = display.width or 0
    yield Paragraph(shortened(f"results: {plain_text(str(report.spec['store']))}", width), "title")
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
        yield replace(grid, columns=grid.groups(width)[0])
    left_out = {"rows": len(rows) - most, "failed runs": len(report.table("failed")) - len(failed)}
    if counts := ", ".join(f"{count} {name}" for name, count in left_out.items() if count > 0):
        yield Paragraph(
            f"Not shown: {counts}; --statistic NAME, --group-by, --top N, or -o summary.csv.", "note"
        )
