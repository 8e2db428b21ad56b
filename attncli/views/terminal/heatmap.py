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
from attncli.views.terminal.blocks import BOLD, DIM, ScreenLine, styled, text_columns, text_line, wrapped
from attncli.views.terminal.heatmap_figure import draw
from attncli.views.terminal.heatmap_layout import BLANK, TokenTexts, sentences
from attncli.views.terminal.line_charts import curve_lines

NOTHING = "No matrix and no curve to draw here; --format table shows the numbers."


def report_lines(report: Report, display: Display) -> Iterator[ScreenLine]:
    """Heading, pictures, tokens that were shortened, notes."""
    width = display.width or TEXT_WIDTH
    title = heading(report) if display.title is None else plain_text(display.title)
    yield from wrapped(title, width, BOLD, display.has_color)
    found = {name: list(group) for name, group in groupby(matrices(report), key=lambda matrix: matrix.name)}
    pictures: list[list[ScreenLine]] = []
    incomplete: TokenTexts = {}
    for name, group in found.items():
        compared = [matrix for other in compared_names(report, name) for matrix in found[other]]
        figure = draw(report, group, display, compared)
        incomplete = {**incomplete, **figure.mentioned}
        pictures.append(figure.lines)
    pictures += curve_lines(report, display)
    for lines in pictures or [[text_line(NOTHING)]]:
        yield from (BLANK, *lines)
    if incomplete:
        yield BLANK
        for line in text_columns(sentences(dict(sorted(incomplete.items()))), width):
            yield styled(line, DIM, display.has_color)
    yield BLANK
    for note in report.notes:
        yield from wrapped(plain_text(note), width, DIM, display.has_color)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading, a blank line between reports."""
    for number, report in enumerate(reports):
        if number:
            stream.write("\n")
        for line in report_lines(chosen_parts(report, display.show or ("all",)), display):
            stream.write(f"{line.text.rstrip(' ')}\n")
