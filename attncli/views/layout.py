"""Lays out sections: fitted to the lines of a terminal, drawn by rich without markup, or as Markdown."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from io import StringIO
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as ScreenTable
from rich.text import Text

from attncli.views import TEXT_WIDTH, Display
from attncli.views.sections import GAP, Column, Drawing, Elastic, Grid, NamedValues, Paragraph, Section
from attncli.views.texts import NO_NUMBER


def fitted(parts: Sequence[Section | Elastic], display: Display) -> list[Section]:
    """Fit the parts into the display's lines: first their least rows, then the usual rows, then the most."""

    @cache
    def drawn(place: int, rows: int) -> Sequence[Section]:
        part = parts[place]
        return [*part.of(rows)] if isinstance(part, Elastic) else [part]

    @cache
    def num_lines(place: int, rows: int) -> int:
        stream = StringIO()
        screen = BlankScreen(stream, replace(display, colors="none"))
        for section in drawn(place, rows):
            screen.draw(section)
        return stream.getvalue().count("\n")

    elastic = {place: part for place, part in enumerate(parts) if isinstance(part, Elastic)}
    rows = dict.fromkeys(range(len(parts)), 0) | {place: part.usual for place, part in elastic.items()}
    if display.height is not None and elastic:
        rows |= {place: part.least for place, part in elastic.items()}
        left = display.height - sum(num_lines(*place_and_rows) for place_and_rows in rows.items())
        in_order = sorted(elastic.items(), key=lambda item: item[1].rank)
        for place, most in [
            *((place, part.usual) for place, part in in_order),
            *((place, part.most) for place, part in in_order),
        ]:
            room = left + num_lines(place, rows[place])
            rows[place] = _most_rows(partial(num_lines, place), room, rows[place], most)
            left = room - num_lines(place, rows[place])
    return [section for place, count in rows.items() for section in drawn(place, count)]


def _most_rows(num_lines: Callable[[int], int], room: int, least: int, most: int) -> int:
    """Return the largest number of rows that fits, or `least`."""
    if most <= least or num_lines(most) <= room:
        return max(least, most)
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if num_lines(middle) <= room else (least, middle)
    return least


LAYOUT_WIDTH = 1_000_000
STYLES = {"prose": "", "line": "", "note": "dim", "dim": "dim"}  # of paragraphs; the others are bold


class PipeConsole(Console):
    """A console that leaves a closed pipe to its caller, whereas rich would end the process.

    Characters that the stream cannot write are replaced by other characters of the same width, so that tables
    stay aligned.
    """

    encoding = "utf-8"

    def on_broken_pipe(self) -> None:
        """Raise the exception that rich caught."""
        raise


class Screen:
    """Draws sections on a stream, using the width and colours of the display."""

    def __init__(self, stream: TextIO, display: Display) -> None:
        self.width = display.width
        self.console = PipeConsole(
            file=stream,
            width=LAYOUT_WIDTH,
            color_system="standard" if display.has_color else None,
            force_terminal=display.has_color,
            force_jupyter=False,
            no_color=not display.has_color,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
            _environ={},
        )

    def draw(self, section: Section) -> None:
        """Draw a section, after a blank line unless it continues the previous section."""
        if not isinstance(section, Paragraph) or section.style in ("step", "prose", "lead"):
            self.console.print()
        match section:
            case Paragraph(text, "step"):
                line = f"══ {text} "
                self._text(line + "═" * ((self.width or TEXT_WIDTH) - len(line)), "bold")
            case Paragraph(text, style):
                self._text(text, STYLES.get(style, "bold"))
            case NamedValues(sentences, numbers):
                for name, text in sentences.items():
                    self._text(f"{name}: {text}")
                left, right = (max(map(len, texts), default=0) for texts in (numbers, numbers.values()))
                for name, number in numbers.items():
                    self._text(f"{name:<{left}}  {number:>{right}}")
            case Grid():
                self._grid(section)
            case Drawing(title, lines):
                self._text(title, "dim")
                self._lines(lines)

    def _text(self, text: str, style: str = "") -> None:
        """Write a text in lines of screen width, even in a pipe, where a pager would break words."""
        self.console.print(Text(text, style=style), width=self.width or TEXT_WIDTH)

    def _grid(self, grid: Grid) -> None:
        """Write the table in as many column groups as the width requires."""
        groups = grid.groups(self.width)
        if grid.title:
            parts = f" (in {len(groups)} groups of columns)" if len(groups) > 1 else ""
            self._text(f"{grid.title}{parts}", "bold")
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            columns = [grid.label, *group]
            self._table(columns, _folded(columns, self.width))

    def _lines(self, lines: Sequence[str]) -> None:
        self.console.file.writelines(f"{line}\n" for line in lines)

    def _table(self, columns: Sequence[Column], folded: Mapping[int, int]) -> None:
        self.console.print(_table(columns, folded))


class BlankScreen(Screen):
    """Counts lines without drawing them, because fitting parts takes many attempts."""

    def _lines(self, lines: Sequence[str]) -> None:
        super()._lines([""] * len(lines))

    def _table(self, columns: Sequence[Column], folded: Mapping[int, int]) -> None:
        if folded:
            super()._table(columns, folded)
        else:
            header = 1 + max(_header(column).count("\n") for column in columns)
            self._lines([""] * (header + 1 + len(columns[0].cells)))


LEAST_TEXT = 10
"""The minimum width of a text column, in terminal cells."""


def _folded(columns: Sequence[Column], width: int | None) -> dict[int, int]:
    """Return the cells left for text columns, the widest first, if the table is wider than the screen."""
    excess = sum(column.width for column in columns) + GAP * (len(columns) - 1) - (width or 0)
    folded = {}
    texts = [i for i, column in enumerate(columns) if column.left]
    for i in sorted(texts, key=lambda i: -columns[i].width) if width else ():
        if excess > 0 and columns[i].width > LEAST_TEXT:
            folded[i] = max(LEAST_TEXT, columns[i].width - excess)
            excess -= columns[i].width - folded[i]
    return folded


def _table(columns: Sequence[Column], folded: Mapping[int, int]) -> ScreenTable:
    """Lay out the columns with a rule below the headers; strings wrap if they are `folded`."""
    table = ScreenTable(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim"
    )
    for i, column in enumerate(columns):
        table.add_column(
            Text(_header(column)),
            justify="left" if column.left else "right",
            no_wrap=i not in folded,
            overflow="fold",
            width=folded.get(i),
            vertical="top" if folded else "bottom",
        )
    for row in zip(*map(_styled_cells, columns), strict=True):
        table.add_row(*row)
    return table


def _header(column: Column) -> str:
    return "\n".join(column.header).lstrip("\n")


def _styled_cells(column: Column) -> Iterator[Text]:
    for row, text in enumerate(column.cells):
        style = "bold" if row in column.emphasis else "dim" if text == NO_NUMBER else ""
        yield Text(text, style=style)


# Markup anywhere, the middle of an address that GitHub would link, and the start of a list or a rule.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$#]|(?<=:)/(?=/)|(?<=www)\.|^[-+](?=[ -]|$)|(?<=[0-9])[.)](?= |$)")


def escaped(text: str) -> str:
    """Escape a string so that Markdown shows it literally."""
    return MARKUP.sub(lambda match: f"\\{match[0]}", text.strip())


def _markdown_cell(column: Column, row: int) -> str:
    text = escaped(column.cells[row])
    return f"**{text}**" if row in column.emphasis else text


def _markdown_table(grid: Grid) -> Iterator[str]:
    """Return a table of all columns, with the largest number of each row in bold."""
    columns = [grid.label, *grid.columns]
    rows = [[escaped(" ".join(column.header)) for column in columns]]
    rows += [[":--" if column.left else "--:" for column in columns]]
    rows += [[_markdown_cell(column, i) for column in columns] for i in range(len(grid.label.cells))]
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def markdown_blocks(section: Section) -> Iterator[str]:
    """Return blocks separated by blank lines; a drawing is indented code, which none of its lines can end."""
    match section:
        case Paragraph(text, style):
            yield {"title": "# ", "step": "## "}.get(style, "") + escaped(text)
        case NamedValues(sentences, numbers):
            values = {**sentences, **numbers}
            yield "\n".join(f"- {escaped(f'{name}: {text}')}" for name, text in values.items())
        case Grid(title):
            yield f"### {escaped(title)}" if title else ""
            yield "\n".join(_markdown_table(section))
        case Drawing(title, lines):
            yield escaped(title)
            yield "\n".join(f"    {line}" for line in lines)
