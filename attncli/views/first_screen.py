"""First screens as data: a list of parts that a common layout fits and draws.

    SCREEN = FirstScreen(
        HeadEffects,
        (TitleLine(), ReadLine(), Ranked("heads", (PatternCells(), NumberCells("loss"))), Notes()),
    )

The parts and the result's class determine what a screen needs from a report; a report that lacks any of this,
for example because it was edited, is shown in full.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.records.columns import Record, Records, Result
from attncli.records.report import PLACES, NamedTensor, Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.matrices import Curves, Spreads, head_name
from attncli.views.report_sections import (
    LAST,
    TableLabels,
    TensorTables,
    notes_in,
    place_columns,
    requested_top,
    shortenable_names,
    split_header,
    statistic_columns,
    statistic_tables,
    text_read,
    titled,
)
from attncli.views.sections import (
    LEAST_LINES,
    LEAST_ROWS,
    Column,
    Elastic,
    Grid,
    Paragraph,
    ScreenParts,
    Section,
)
from attncli.views.texts import DECIMALS, NO_NUMBER, fixed, half_width, shortened, shortened_heading

if TYPE_CHECKING:
    from attncli.views.canvas import Panel


@dataclass(frozen=True, kw_only=True)
class Element:
    """A part of a first screen.

    `settings` names the settings that the part reads, which a saved report may lack; `said` names the
    sentences of the report that the part shows. `shows` tests whether a report has this part.
    """

    settings: Mapping[str, type] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    shows: Callable[[Report], bool] = lambda _: True

    def suits(self, report: Report) -> bool:
        """Return True if the report has what this part shows."""
        return all(getattr(report, name) for name in self.said) and all(
            key in report.spec and isinstance(report.spec[key], kind) for key, kind in self.settings.items()
        )

    def sections(self, report: Report, display: Display) -> ScreenParts:
        """Yield the sections that this part shows."""
        raise NotImplementedError


@dataclass(frozen=True)
class NamingLine(Element):
    """A line that is made to fit by shortening only the names of models, programs and files."""

    words: Callable[[Report], str]
    style: str = "title"

    def sections(self, report: Report, display: Display) -> ScreenParts:
        names = map(plain_text, shortenable_names(report))
        yield Paragraph(shortened_heading(plain_text(self.words(report)), display.width, *names), self.style)


@dataclass(frozen=True)
class TitleLine(NamingLine):
    """A line like `why: smollm2, 270 heads, on 15 tokens`: the experiment and the report's subject."""

    words: Callable[[Report], str] = titled
    said: tuple[str, ...] = ("about",)


@dataclass(frozen=True)
class ShortenedLine(Element):
    """A text, cut if it does not fit on a line; nothing if the text is empty."""

    words: Callable[[Report], str]
    style: str = ""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if text := " ".join(self.words(report).split()):
            yield Paragraph(shortened(plain_text(text), display.width), self.style)


@dataclass(frozen=True)
class ReadLine(ShortenedLine):
    """The line that names what the model read."""

    words: Callable[[Report], str] = text_read


@dataclass(frozen=True, kw_only=True)
class HowToRead(Element):
    """The meaning of the numbers."""

    said: tuple[str, ...] = ("how_to_read",)

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield Paragraph(plain_text(report.how_to_read), "note")


@dataclass(frozen=True)
class Sentences(Element):
    """Sentences about the result, each beginning on a new line."""

    sentences: Callable[[Report, Display], Iterator[str]]
    style: str = ""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield from (Paragraph(line, self.style) for line in self.sentences(report, display))


@dataclass(frozen=True)
class Notes(Element):
    """The notes that fit, after a blank line if they are `apart`; usually all of them, or `usual` lines.

    By default, all other parts are fitted first; `least` lines are always shown.
    """

    notes: Callable[[Report], Iterable[str]] = attrgetter("notes")
    apart: bool = False
    usual: int | Callable[[Report], int] | None = None
    rank: int = LAST
    least: int = 0

    def sections(self, report: Report, display: Display) -> ScreenParts:
        usual = self.usual(report) if callable(self.usual) else self.usual
        notes = notes_in(self.notes(report), display, usual=usual, apart=self.apart, least=self.least)
        yield replace(notes, rank=self.rank)


def notes_and_how_to_read(report: Report) -> Iterator[str]:
    """Return the notes of a report, followed by the meaning of its numbers."""
    yield from report.notes
    yield report.how_to_read


@dataclass(frozen=True)
class Special(Element):
    """A part that only one screen has; `why` explains why no other part fits."""

    parts: Callable[[Report, Display], ScreenParts]
    because: str

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield from self.parts(report, display)


def field_rows(report: Report, table: str) -> Records[Any]:
    """Return the rows of a field of the result, or none if the field is empty."""
    return getattr(report.result, table) or Records(Record, {})


def group_of(report: Report, table: str) -> str:
    """Return the name, in the report, of the group of statistics that a field of the result is in."""
    groups = type(report.result).groups()
    return next((group.name for group in groups if table in group.fields), table)


Header = str | tuple[str, ...]
"""The text above a column: its lower line, or both lines."""


def header_lines(header: Header, name: str = "") -> tuple[str, ...]:
    """Return the two lines of a column's header, which is by default made from the column's name."""
    if not header:
        return split_header(name)
    return ("", header) if isinstance(header, str) else header


def interval(lower: float | None, upper: float | None, decimals: int) -> str:
    """Format an interval like `0.52-0.71`."""
    return NO_NUMBER if lower is None else f"{fixed(lower, decimals)}-{fixed(upper, decimals)}"


class TableColumn:
    """One or more columns of a table, or none if the rows lack their cells."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        """Return the columns for these rows."""
        raise NotImplementedError

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        """Return the names of the cells that the columns show."""
        return ()


@dataclass(frozen=True)
class NumberCells(TableColumn):
    """A column of numbers, identified by its name in the row class, with an optional header.

    By default, the display determines the number of decimals. With `if_any`, a column without numbers is left
    out.
    """

    name: str
    header: Header = ""
    decimals: int | None = None
    if_any: bool = False

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        if self.name not in rows.cells:
            return []
        if self.if_any and all(row[self.name] is None for row in rows):
            return []
        precision = display.precision if self.decimals is None else self.decimals
        cells = [fixed(row[self.name], precision) for row in rows]
        return [Column(header_lines(self.header, self.name), cells)]

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        return (self.name,) if self.name in rows.cells else ()


@dataclass(frozen=True)
class TextCells(TableColumn):
    """A column of strings, identified by its name in the row class; `words` replaces some of the values.

    Each string takes at most `most` terminal cells, or the width left by the columns `beside` it.
    """

    name: str
    header: Header = ""
    most: int | None = None
    beside: int | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        most = self.most
        if self.beside is not None:
            most = display.columns - self.beside
        texts = [self.words.get(row[self.name], plain_text(row[self.name])) for row in rows]
        cells = [shortened(text, most) for text in texts]
        return [Column(header_lines(self.header, self.name), cells, left=True)]

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        return (self.name,) if self.name in rows.cells else ()


@dataclass(frozen=True)
class RowCells(TableColumn):
    """A column computed from each row by a function."""

    header: Header
    cell: Callable[[Any], str]
    left: bool = False

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return [Column(header_lines(self.header), [*map(self.cell, rows)], left=self.left)]


@dataclass(frozen=True)
class IntervalCells(TableColumn):
    """A column of intervals like `0.52-0.71`, identified by the names of their ends in the row class."""

    lower: str = "lower"
    upper: str = "upper"
    header: Header = "95 %"
    decimals: int = DECIMALS

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        cells = [interval(row[self.lower], row[self.upper], self.decimals) for row in rows]
        return [Column(header_lines(self.header), cells, left=True)]

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        return self.lower, self.upper


@dataclass(frozen=True)
class HalfWidthCells(TableColumn):
    """A column like `±0.01`, half of a mean's interval, by the names of both ends; none without intervals."""

    mean: str
    upper: str

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        if self.upper not in rows.cells:
            return []
        cells = [half_width(row[self.mean], row[self.upper], display.precision) for row in rows]
        return [Column(("", ""), cells)]


NamesOfColumns = Callable[[Report, Records[Any]], Iterable[str]]


@dataclass(frozen=True)
class PlaceCells(TableColumn):
    """Columns for the parts of a head's place other than LAYER:HEAD, if they distinguish heads."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return place_columns(rows)


@dataclass(frozen=True)
class StatisticCells(TableColumn):
    """The statistics of heads: all of them, or the named statistics."""

    names: NamesOfColumns = lambda _, rows: rows.cells

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return statistic_columns(rows, self.names(report, rows), display.precision)

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        return (name for name in self.names(report, rows) if name in rows.cells)


@dataclass(frozen=True)
class PatternCells(TableColumn):
    """The average pattern of each head."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        from attncli.views.model_screens import patterns_on_average

        return [patterns_on_average(rows)]

    def cell_names(self, report: Report, rows: Records[Any]) -> Iterable[str]:
        return ("pattern",) if "pattern" in rows.cells else ()


@dataclass(frozen=True)
class LookedAtCells(TableColumn):
    """The key with each head's largest weight at one token, if `of` contains the number of columns needed.

    If the token is the same for all heads, the header is `from TOKEN DOES`; otherwise, it is `KEY key`.
    """

    does: str = "looks at"
    key: str = "strongest"
    of: tuple[int, ...] = (0, 1, 2)

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        from attncli.views.model_screens import looked_at_columns

        columns = looked_at_columns(rows, display, self.does, self.key)
        return columns if len(columns) in self.of else []


@dataclass(frozen=True)
class SpecialCells(TableColumn):
    """Columns that only one table has."""

    cells: Callable[[Report, Records[Any], Display], list[Column]]

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return self.cells(report, rows, display)


@dataclass(frozen=True)
class HeadLabel(TableColumn):
    """LAYER:HEAD, preceded by the stack if there are several and `has_stacks` is true."""

    has_stacks: bool = True
    header: tuple[str, ...] = ("", "head")

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        names = [head_name(row) for row in rows]
        if self.has_stacks and "stack" in rows.cells and len({row.stack for row in rows}) > 1:
            names = [f"{row.stack} {name}" for row, name in zip(rows, names, strict=True)]
        return [Column(self.header, names)]


NumRows = Callable[[Report, Display], int]


@dataclass(frozen=True)
class Ranked(Element):
    """The first rows of a table of the result, in its order: `usual` rows, or as many as fit a terminal.

    `rows` is the field of the result, and `title` makes the title from the number of rows shown. If the table
    `is_cut`, columns that do not fit are left out; otherwise, they wrap into groups. `left_out` makes a line
    about what is not shown.
    """

    rows: str
    columns: tuple[TableColumn, ...]
    title: Callable[[Report, Records[Any], int], str] = lambda *_: ""
    label: TableColumn = HeadLabel()
    usual: int | NumRows = LEAST_ROWS
    least: int | NumRows = LEAST_ROWS
    most: NumRows | None = None
    rank: int = 0
    is_cut: bool | Callable[[Report], bool] = False
    left_out: Callable[[Records[Any], int], str] | None = None

    def sections(self, report: Report, display: Display) -> ScreenParts:
        rows = field_rows(report, self.rows)
        usual, least = (
            count if isinstance(count, int) else count(report, display) for count in (self.usual, self.least)
        )
        most = len(rows) if self.most is None else min(self.most(report, display), len(rows))
        # A number that the user sets is shown even if it does not fit.
        least = requested_top(report) or least
        yield Elastic(
            lambda count: self._sections(report, rows[:count], len(rows), display) if count else (),
            min(usual, len(rows)),
            min(least, len(rows)),
            most,
            self.rank,
        )

    def _sections(
        self, report: Report, rows: Records[Any], total: int, display: Display
    ) -> Iterator[Section]:
        yield self._grid(report, rows, total, display)
        if self.left_out is not None:
            yield Paragraph("", "dim")
            if len(rows) < total:
                yield Paragraph(self.left_out(rows, total), "note")

    def _grid(self, report: Report, rows: Records[Any], total: int, display: Display) -> Grid:
        (label,) = self.label.columns(report, rows, display)
        columns = [column for each in self.columns for column in each.columns(report, rows, display)]
        grid = Grid(self.title(report, rows, total), label, columns)
        is_cut = self.is_cut(report) if callable(self.is_cut) else self.is_cut
        return grid.first_group(display.width) if is_cut else grid


@dataclass(frozen=True)
class FirstRows(Element):
    """The first rows of a table of the result, with all columns, if the table has rows."""

    table: str

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if rows := field_rows(report, self.table):
            yield Elastic(
                lambda count: statistic_tables(
                    {self.table: rows[:count]},
                    display,
                    TableLabels(report, display),
                ),
                len(rows),
                min(LEAST_ROWS, len(rows)),
                rank=1,
            )


@dataclass(frozen=True)
class HeadGrids(Element):
    """One digit per head for each tensor by layer and head, if the grids take at most `highest` lines.

    Heads are sorted by `by`. With `has_numbers`, numbers replace the digits if each layer has its own line.
    """

    by: Callable[[Report], str] = lambda _: ""
    highest: int | None = None
    has_numbers: bool = False

    def drawings(self, report: Report, display: Display) -> list[Elastic]:
        """Return the grids. If there are too many, they are shown only where lines are left over."""
        grids = report.tensors.items() if self.shows(report) else ()
        drawings = [
            self._drawing(report, name, tensor, display) for name, tensor in grids if tensor.axes == PLACES
        ]
        is_low = self.highest is None or grid_lines(drawings) <= self.highest
        return drawings if is_low else [replace(drawing, usual=0) for drawing in drawings]

    def _drawing(self, report: Report, name: str, tensor: NamedTensor, display: Display) -> Elastic:
        from attncli.views.model_screens import tenths

        drawing = tenths(name, tensor, self.by(report), display)
        if not self.has_numbers:
            return drawing
        tables = TensorTables(replace(report, tensors={name: tensor}), display, TableLabels(report, display))
        num_layers = len(tensor.values)
        return Elastic(
            lambda lines: tables.sections() if lines >= num_layers else drawing.of(lines),
            num_layers,
            min(LEAST_LINES, num_layers),
        )

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield from self.drawings(report, display)


def grid_lines(drawings: Sequence[Elastic]) -> int:
    """Return the number of lines that grids of heads take, each with its title and a blank line."""
    return sum(drawing.most + 2 for drawing in drawings)


MOST_PAGE_COLUMNS = 3
"""The most columns of a ranked table that a page shows beside the picture by default."""


class PageTable(NamedTuple):
    """The table beside a page's picture: a table of the result, and its most important columns in order.

    Without columns, it has all of them. Rows are sorted by `by`, largest first; by default, they keep the
    result's order. Rows with `first`, a column's name and a value, come first, and those with `last` last.
    """

    table: str
    columns: tuple[str, ...]
    by: str = ""
    first: tuple[str, object] = ("", None)
    last: tuple[str, object] = ("", None)


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a kind of result, as parts from top to bottom.

    `next_steps` chooses among the command's suggestions, and `next_head` chooses the head that they name
    (None: the report's first). `if_empty` explains an empty table, if that is a result. `finding` is the
    first sentence of a page. `picture` replaces the tensors in figures; `figures` adds panels of the
    statistics with these names. `main` names the tensors, tables or statistics of heads of which a figure or
    a page shows the first that a report has, unless the heads are sorted; if it is a curve, a page shows
    the other curves with it. A page without a `main` shows the `Spreads` of the `figures`. `page_table`
    returns the table beside the page's picture; by default, the first ranked table of the screen.
    """

    kind: type[Result]
    parts: tuple[Element, ...]
    next_steps: Callable[[Report, tuple[str, ...]], tuple[str, ...]] = lambda _, steps: steps
    next_head: Callable[[Report], str | None] = lambda _: None
    if_empty: Mapping[str, str] = field(default_factory=dict)
    finding: Callable[[Report], Iterator[str]] | None = None
    picture: "Callable[[Report, Collection[str]], Panel | None]" = lambda *_: None
    figures: Callable[[Report, Collection[str]], Iterator[Curves | Spreads]] = lambda *_: iter(())
    page_table: Callable[[Report], PageTable | None] | None = None
    main: tuple[str, ...] | Callable[[Report], tuple[str, ...]] = ()

    def suits(self, report: Report) -> bool:
        """Return True if the report has what the screen shows; an edited report may not."""
        return isinstance(report.result, self.kind) and all(part.suits(report) for part in self.parts)

    def main_of(self, report: Report) -> tuple[str, ...]:
        """Return the names of the parts of which a figure or a page shows the first that a report has."""
        return self.main(report) if callable(self.main) else self.main

    def table_of_page(self, report: Report) -> PageTable | None:
        """Return the table beside the page's picture, or None if the result has no such table."""
        if self.page_table is not None:
            return self.page_table(report)
        for part in self.parts:
            if isinstance(part, Ranked) and part.shows(report) and (rows := field_rows(report, part.rows)):
                names = (name for column in part.columns for name in column.cell_names(report, rows))
                return PageTable(group_of(report, part.rows), tuple(dict.fromkeys(names))[:MOST_PAGE_COLUMNS])
        return None

    def sections(self, report: Report, display: Display) -> ScreenParts:
        """Yield the parts before fitting them to the height; missing parts are named below the title."""
        for number, part in enumerate(self.parts):
            if part.shows(report):
                yield from part.sections(report, display)
            if number == 0 and report.missing:
                yield Paragraph(plain_text(report.missing), "line")
