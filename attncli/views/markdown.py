"""Reports as Markdown: headings, lists and GitHub's tables, in which no text of a report is markup."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TextIO

from attncli.report import Report
from attncli.views import Display
from attncli.views.sections import Column, Drawing, Grid, Paragraph, Section, Values
from attncli.views.tables import sections

# What is markup anywhere, the middle of an address that GitHub would link, what begins a list or a rule.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$#]|(?<=:)/(?=/)|(?<=www)\.|^[-+](?=[ -]|$)|(?<=[0-9])[.)](?= |$)")
MOST_DIMS = 8


def escaped(text: str) -> str:
    """The text, escaped so that Markdown shows it as it is."""
    return MARKUP.sub(lambda match: f"\\{match[0]}", text.strip())


def _cell(column: Column, row: int) -> str:
    text = escaped(column.cells[row])
    return f"**{text}**" if row in column.emphasis else text


def _table(grid: Grid) -> Iterator[str]:
    """Every column, however many there are; the largest number of a row in bold."""
    columns = [grid.label, *grid.columns]
    rows = [[escaped(" ".join(column.header)) for column in columns]]
    rows += [[":--" if column.left else "--:" for column in columns]]
    rows += [[_cell(column, i) for column in columns] for i in range(len(grid.label.cells))]
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _blocks(section: Section) -> Iterator[str]:
    """Blocks, which blank lines separate; a drawing is code, indented, so that nothing in it can end it."""
    match section:
        case Paragraph(text, style):
            yield {"title": "# ", "step": "## "}.get(style, "") + escaped(text)
        case Values(sentences, numbers):
            values = {**sentences, **numbers}
            yield "\n".join(f"- {escaped(f'{name}: {text}')}" for name, text in values.items())
        case Grid(title):
            yield f"### {escaped(title)}" if title else ""
            yield "\n".join(_table(section))
        case Drawing(title, lines):
            yield escaped(title)
            yield "\n".join(f"    {line}" for line in lines)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading; tables whole, whatever the screen, but for vectors of many dims."""
    whole = replace(display, width=None, colors="none", most_dims=MOST_DIMS)
    for number, report in enumerate(reports):
        blocks = (block for section in sections(report, whole) for block in _blocks(section) if block)
        stream.write(("\n" if number else "") + "\n\n".join(blocks) + "\n")
