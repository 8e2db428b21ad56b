"""Reports as pictures in a terminal: a heatmap for each matrix, a line chart for each curve."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TextIO

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.heading import heading
from attncli.views.matrices import compared_names, matrices
from attncli.views.parts import chosen_parts
from attncli.views.terminal.blocks import BOLD, DIM, ScreenLine, styled, text_line, wrapped
from attncli.views.terminal.curve_charts import curve_lines
from attncli.views.terminal.heatmap_figure import draw
from attncli.views.terminal.token_index import index_lines

NOTHING = "No matrix and no curve to draw here; --format table shows the numbers."


def report_lines(report: Report, display: Display) -> Iterator[ScreenLine]:
    """Heading, pictures, tokens that were shortened, notes."""
    blank = text_line("")
    title = heading(report) if display.title is None else plain_text(display.title)
    yield from wrapped(title, display.width or TEXT_WIDTH, BOLD, display.has_color)
    told: dict[tuple[str, int], str] = {}
    is_empty = True
    found = {name: list(group) for name, group in groupby(matrices(report), key=lambda matrix: matrix.name)}
    for name, group in found.items():
        compared = [matrix for other in compared_names(report, name) for matrix in found[other]]
        figure = draw(report, group, display, compared)
        told |= figure.mentioned
        is_empty = False
        yield blank
        yield from figure.lines
    for lines in curve_lines(report, display):
        is_empty = False
        yield blank
        yield from lines
    if is_empty:
        yield blank
        yield text_line(NOTHING)
    if told:
        yield blank
        for line in index_lines(dict(sorted(told.items())), display.width or TEXT_WIDTH):
            yield styled(text_line(line), DIM, display.has_color)
    yield blank
    for note in report.notes:
        yield from wrapped(plain_text(note), display.width or TEXT_WIDTH, DIM, display.has_color)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading, a blank line between reports."""
    for number, report in enumerate(reports):
        if number:
            stream.write("\n")
        for line in report_lines(chosen_parts(report, display.show or ("all",)), display):
            stream.write(f"{line.text.rstrip(' ')}\n")
