"""The curves of a report: the softmax over its points, and each row of weights that a factor sharpens."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from attncli.report import Report, Table
from attncli.views import Display
from attncli.views.blocks import BOLD, Line, beside, styled, text_line
from attncli.views.line_chart import Ends, chart

ROWS = 11
SMALL_ROWS = 7
MOST_COLUMNS = 100
LABEL_CELLS = 13  # The numbers beside an axis, and the axis.
SMALL_COLUMNS = 14, 30
GAP = 2


class Curve(NamedTuple):
    """A title and the points; curves of one group share the ends of y."""

    title: str
    x: np.ndarray
    y: np.ndarray


def _curves_over_points(report: Report) -> list[Curve]:
    """Tensors that count points: the first is where, the others what is there."""
    points = {name: t.values for name, t in report.tensors.items() if t.axes == ("point",)}
    names = list(points)
    return [Curve(f"{name} over {names[0]}", points[names[0]], points[name]) for name in names[1:]]


def _sharpened_rows(report: Report) -> list[tuple[str, list[Curve]]]:
    """Lists of rows of which each has a list of numbers: a curve a row."""
    groups = []
    for name, rows in report.statistics.items():
        if not isinstance(rows, Table) or not rows:
            continue
        columns = [key for key, value in rows[0].items() if isinstance(value, list)]
        first = next(iter(rows[0]))
        for column in columns:
            curves = []
            for row in rows:
                y = np.array(row[column], dtype=np.float64)
                curves.append(Curve(f"{first} {row[first]:g}", np.arange(len(y)), y))
            groups.append((f"{name}: {column} by {first}", curves))
    return groups


def curve_lines(report: Report, display: Display) -> Iterator[list[Line]]:
    """A line chart for each group of curves, those of one group side by side with one axis of y."""
    for curve in _curves_over_points(report):
        width = MOST_COLUMNS if display.width is None else min(display.width, MOST_COLUMNS)
        ends = Ends(float(curve.y.min()), float(curve.y.max()))
        title = styled(text_line(curve.title), BOLD, display.has_color)
        yield [title, *_chart(curve, ends, max(width - LABEL_CELLS, MOST_COLUMNS // 4), ROWS, display)]
    for name, curves in _sharpened_rows(report):
        ends = Ends(0.0, max(float(curve.y.max()) for curve in curves))
        columns = _small_columns(len(curves), display.width)
        lines = [styled(text_line(name), BOLD, display.has_color)]
        charts = [
            [text_line(curve.title), *_chart(curve, ends, columns, SMALL_ROWS, display)] for curve in curves
        ]
        while charts:
            across = _fitting(charts, display.width)
            lines += beside(charts[:across], GAP)
            charts = charts[across:]
        yield lines


def _chart(curve: Curve, ends: Ends, columns: int, rows: int, display: Display) -> list[Line]:
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


def _fitting(charts: list[list[Line]], width: int | None) -> int:
    """How many of the charts stand beside each other; one at least."""
    used, across = 0, 0
    for lines in charts:
        used += max(line.cells for line in lines) + (GAP if across else 0)
        if width is not None and used > width and across:
            break
        across += 1
    return across
