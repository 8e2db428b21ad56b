"""The curves of a report as charts in a terminal."""

from collections.abc import Iterator

from attncli.report import Report
from attncli.views import Display
from attncli.views.curves import Curve, curves_of
from attncli.views.terminal.blocks import BOLD, ScreenLine, beside, styled, text_line
from attncli.views.terminal.line_chart import Ends, chart

ROWS = 11
SMALL_ROWS = 7
MOST_COLUMNS = 100
LABEL_CELLS = 13  # The numbers beside an axis, and the axis.
SMALL_COLUMNS = 14, 30
GAP = 2


def curve_lines(report: Report, display: Display) -> Iterator[list[ScreenLine]]:
    """A line chart for each curve over points; those of a table's rows side by side with one axis of y."""
    for group in curves_of(report):
        lines = [styled(text_line(group.title), BOLD, display.has_color)]
        yield lines + (_small_charts if group.is_of_rows else _one_chart)(group.curves, display)


def _one_chart(curves: list[Curve], display: Display) -> list[ScreenLine]:
    (curve,) = curves
    width = MOST_COLUMNS if display.width is None else min(display.width, MOST_COLUMNS)
    ends = Ends(float(curve.y.min()), float(curve.y.max()))
    return _chart(curve, ends, max(width - LABEL_CELLS, MOST_COLUMNS // 4), ROWS, display)


def _small_charts(curves: list[Curve], display: Display) -> list[ScreenLine]:
    ends = Ends(0.0, max(float(curve.y.max()) for curve in curves))
    columns = _small_columns(len(curves), display.width)
    charts = [
        [text_line(curve.label), *_chart(curve, ends, columns, SMALL_ROWS, display)] for curve in curves
    ]
    lines: list[ScreenLine] = []
    while charts:
        across = _fitting(charts, display.width)
        lines += beside(charts[:across], GAP)
        charts = charts[across:]
    return lines


def _chart(curve: Curve, ends: Ends, columns: int, rows: int, display: Display) -> list[ScreenLine]:
    return chart(
        curve.x,
        curve.y,
        ends,
        columns=columns,
        rows=rows,
        precision=display.precision,
        has_color=display.has_color,
    )


def _small_columns(count: int, width: int | None) -> int:
    """Columns of a chart of which all stand on one line, within what is still readable."""
    least, most = SMALL_COLUMNS
    return most if width is None else max(least, min(most, (width + GAP) // count - GAP - LABEL_CELLS))


def _fitting(charts: list[list[ScreenLine]], width: int | None) -> int:
    """How many of the charts stand beside each other; one at least."""
    used, across = 0, 0
    for lines in charts:
        used += max(line.cells for line in lines) + (GAP if across else 0)
        if width is not None and used > width and across:
            break
        across += 1
    return across
