"""Reports as tables on a screen, drawn by rich from plain text without markup."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.numbers import NO_NUMBER
from attncli.views.tables.elements import Column, Drawing, Grid, Paragraph, Section, Values
from attncli.views.tables.sections import sections

LAYOUT_WIDTH = 1_000_000
STYLES = {"prose": "", "line": "", "note": "dim", "dim": "dim"}  # of paragraphs; the others are bold


class PipeConsole(Console):
    """A console that leaves a closed pipe to its caller, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise


class Screen:
    """Draws sections on a stream, in the width and the colours of the display."""

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
        """One section, after a blank line unless it belongs to the section before."""
        if not isinstance(section, Paragraph) or section.style in ("step", "prose", "lead"):
            self.console.print()
        match section:
            case Paragraph(text, "step"):
                line = f"══ {text} "
                self._text(line + "═" * max(0, (self.width or TEXT_WIDTH) - len(line)), "bold")
            case Paragraph(text, style):
                self._text(text, STYLES.get(style, "bold"))
            case Values(sentences, numbers):
                for name, text in sentences.items():
                    self._text(f"{name}: {text}")
                left, right = (max(map(len, texts), default=0) for texts in (numbers, numbers.values()))
                for name, number in numbers.items():
                    self._text(f"{name:<{left}}  {number:>{right}}")
            case Grid():
                self._grid(section)
            case Drawing(title, lines):
                self._text(title, "dim")
                self.console.file.writelines(f"{line}\n" for line in lines)

    def _text(self, text: str, style: str = "") -> None:
        """A text in lines, at screen width even in a pipe, where a pager would break it within words."""
        self.console.print(Text(text, style=style), width=self.width or TEXT_WIDTH)

    def _grid(self, grid: Grid) -> None:
        """The table in as many groups of columns as the width needs."""
        groups = grid.groups(self.width)
        if grid.title:
            parts = f" (in {len(groups)} groups of columns)" if len(groups) > 1 else ""
            self._text(f"{grid.title}{parts}", "bold")
        for number, group in enumerate(groups):
            if number:
                self.console.print()
            self.console.print(_table([grid.label, *group]))


def _table(columns: Sequence[Column]) -> Table:
    """The columns with a rule below their headers."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim"
    )
    for column in columns:
        table.add_column(
            Text("\n".join(column.header).lstrip("\n")),
            justify="left" if column.left else "right",
            no_wrap=True,
            vertical="bottom",
        )
    for row in zip(*map(_styled_cells, columns), strict=True):
        table.add_row(*row)
    return table


def _styled_cells(column: Column) -> Iterator[Text]:
    for row, text in enumerate(column.cells):
        style = "bold" if row in column.emphasis else "dim" if text == NO_NUMBER else ""
        yield Text(text, style=style)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading, a blank line between reports."""
    screen = Screen(stream, display)
    for number, report in enumerate(reports):
        if number:
            screen.console.print()
        for section in sections(report, display):
            screen.draw(section)
