"""Reports as tables: on a screen, drawn by rich from plain text without markup, and as Markdown."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attncli.plain_text import plain_text
from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.heatmap import sentences
from attncli.views.matrices import chosen_parts, missing_parts, parts_of
from attncli.views.model_screens import ablate_screen, generate_screen, heads_screen, why_screen
from attncli.views.screen_needs import suits
from attncli.views.screens import (
    attention_screen,
    average_screen,
    comparison_screen,
    next_steps,
    norm_screen,
    pitfalls_screen,
    results_screen,
    scale_demo_screen,
)
from attncli.views.sections import (
    Column,
    Drawing,
    Grid,
    Paragraph,
    Section,
    TableLabels,
    TensorTables,
    Values,
    statistic_tables,
    step_sections,
)
from attncli.views.texts import NO_NUMBER, heading, shortened, text_columns

FirstScreen = Callable[[Report, Display], Iterator[Section]]

# An experiment without a screen of its own shows everything. Display.width is a number here.
SCREENS: dict[str, FirstScreen] = {
    "average": average_screen,
    "self": attention_screen,
    "multihead": attention_screen,
    "cross": attention_screen,
    "show": attention_screen,
    "scale-demo": scale_demo_screen,
    "norm": norm_screen,
    "pitfalls": pitfalls_screen,
    "heads": heads_screen,
    "generate": generate_screen,
    "ablate": ablate_screen,
    "why": why_screen,
    "diff": comparison_screen,
    "results": results_screen,
}


def sections(report: Report, display: Display) -> Iterator[Section]:
    """The parts that --show asks for, the explanation, or the first screen; else everything."""
    if display.show:
        yield from _parts(chosen_parts(report, display.show), display)
        for sentence in missing_parts(display.show, parts_of(report)):
            yield Paragraph(f"T{sentence[1:]}.", "dim")
    elif report.steps:
        yield from _explanation(report, display)
    else:
        yield from _screen(report, display) or _parts(report, display)
        yield from next_steps(report)


def _screen(report: Report, display: Display) -> list[Section]:
    """The first screen; empty for an experiment without one and for a saved report that was edited since."""
    if report.experiment not in SCREENS or not suits(report):
        return []
    # As wide as the terminal, and in a pipe as wide as most, so that both print the same there.
    width = display.width or TEXT_WIDTH
    screen_display = replace(display, width=width, precision=display.screen_precision)
    return list(SCREENS[report.experiment](report, screen_display))


def _explanation(report: Report, display: Display) -> Iterator[Section]:
    """The steps, or the one asked for: the heading above the first, what to type next below the last."""
    if display.step in (None, 1):
        yield Paragraph(heading(report), "title")
    yield from step_sections(report, TableLabels(report, display), display.step)
    if display.step in (None, len(report.steps)):
        yield from next_steps(report)


def _parts(report: Report, display: Display) -> Iterator[Section]:
    """Heading, steps, tensors with the statistics of their rows, the other statistics, notes."""
    yield Paragraph(heading(report), "title")
    labels = TableLabels(report, display)
    tensors = TensorTables(report, display, labels)
    mentioned: dict[tuple[str, int], str] = {}
    for section in chain(
        step_sections(report, labels),
        [Paragraph("the report", "step")] if report.steps else [],
        tensors.sections(),
        statistic_tables(report, display, labels),
        tensors.lines_of_numbers(),
    ):
        if isinstance(section, Drawing):
            mentioned |= section.mentioned
        yield section
    long = _long_tokens(report, labels.row_width, mentioned)
    for line in ("", *text_columns(sentences(mentioned), display.width or TEXT_WIDTH), *long):
        yield Paragraph(line, "dim")
    for note in report.sentences:
        yield Paragraph(plain_text(note), "note")


def _long_tokens(
    report: Report, width: int | None, mentioned: Mapping[tuple[str, int], str]
) -> Iterator[str]:
    """Each token that the labels cut short and no picture has mentioned."""
    for name, tokens in (("token", report.tokens), ("context token", report.context_tokens)):
        for i, token in enumerate(map(plain_text, tokens)):
            if shortened(token, width) != token and (name, i) not in mentioned:
                yield f"{name} {i} is {token}"


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


# What is markup anywhere, the middle of an address that GitHub would link, what begins a list or a rule.
MARKUP = re.compile(r"[\\`*_\[\]<>|~&$#]|(?<=:)/(?=/)|(?<=www)\.|^[-+](?=[ -]|$)|(?<=[0-9])[.)](?= |$)")
MOST_DIMS = 8


def escaped(text: str) -> str:
    """The text, escaped so that Markdown shows it as it is."""
    return MARKUP.sub(lambda match: f"\\{match[0]}", text.strip())


def _markdown_cell(column: Column, row: int) -> str:
    text = escaped(column.cells[row])
    return f"**{text}**" if row in column.emphasis else text


def _markdown_table(grid: Grid) -> Iterator[str]:
    """Every column, however many there are; the largest number of a row in bold."""
    columns = [grid.label, *grid.columns]
    rows = [[escaped(" ".join(column.header)) for column in columns]]
    rows += [[":--" if column.left else "--:" for column in columns]]
    rows += [[_markdown_cell(column, i) for column in columns] for i in range(len(grid.label.cells))]
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def _markdown_blocks(section: Section) -> Iterator[str]:
    """Blocks, which blank lines separate; a drawing is code, indented, so that nothing in it can end it."""
    match section:
        case Paragraph(text, style):
            yield {"title": "# ", "step": "## "}.get(style, "") + escaped(text)
        case Values(sentences, numbers):
            values = {**sentences, **numbers}
            yield "\n".join(f"- {escaped(f'{name}: {text}')}" for name, text in values.items())
        case Grid(title):
            yield f"### {escaped(title)}" if title else ""
            yield "\n".join(_markdown_table(section))
        case Drawing(title, lines):
            yield escaped(title)
            yield "\n".join(f"    {line}" for line in lines)


def write_markdown(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Each report under its heading; tables whole, whatever the screen, but for vectors of many dims."""
    whole = replace(display, width=None, colors="none", most_dims=MOST_DIMS)
    for number, report in enumerate(reports):
        blocks = (
            block for section in sections(report, whole) for block in _markdown_blocks(section) if block
        )
        stream.write(("\n" if number else "") + "\n\n".join(blocks) + "\n")
