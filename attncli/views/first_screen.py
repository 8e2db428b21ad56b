"""A first screen is data: the parts that it is made of, which one layout fits and draws everywhere.

    SCREEN = FirstScreen(
        HeadEffects,
        (TitleLine(), ReadLine(), Ranked("heads", (PatternCells(), NumberCells("loss"))), Notes()),
    )

What a screen needs of a report follows from its parts and from the class of its result; a report that lacks
some of it, as an edited one, is shown whole.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from attncli.records.columns import Record, Records, Result
from attncli.records.report import PLACES, NamedTensor, Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.matrices import Curves, Spreads, head_name
from attncli.views.model_screens import (
    DECIMALS,
    LEAST_LINES,
    LEAST_ROWS,
    half_width,
    looked_at_columns,
    patterns_on_average,
    tenths,
)
from attncli.views.report_sections import (
    LAST,
    TableLabels,
    TensorTables,
    named_in,
    notes_in,
    place_columns,
    split_header,
    statistic_columns,
    statistic_tables,
    text_read,
    titled,
)
from attncli.views.sections import Column, Elastic, Grid, Paragraph, ScreenParts, Section
from attncli.views.texts import NO_NUMBER, fixed, shortened, shortened_heading

if TYPE_CHECKING:
    from attncli.views.arrangement import DrawnBlock


@dataclass(frozen=True, kw_only=True)
class Element:
    """A part of a first screen.

    `settings` are those that it reads, which a saved report may lack; `said` are the report's own words.
    `shows` says of a report whether it has this part.
    """

    settings: Mapping[str, type] = field(default_factory=dict)
    said: tuple[str, ...] = ()
    shows: Callable[[Report], bool] = lambda _: True

    def suits(self, report: Report) -> bool:
        """Whether a report has what it shows."""
        return all(getattr(report, name) for name in self.said) and all(
            key in report.spec and isinstance(report.spec[key], kind) for key, kind in self.settings.items()
        )

    def sections(self, report: Report, display: Display) -> ScreenParts:
        """What it shows."""
        raise NotImplementedError


@dataclass(frozen=True)
class NamingLine(Element):
    """A line in which names of models, programs and files are shortened until it fits, and nothing else."""

    words: Callable[[Report], str]
    style: str = "title"

    def sections(self, report: Report, display: Display) -> ScreenParts:
        names = map(plain_text, named_in(report))
        yield Paragraph(shortened_heading(plain_text(self.words(report)), display.width, *names), self.style)


@dataclass(frozen=True)
class TitleLine(NamingLine):
    """`why: smollm2, 270 heads, on 15 tokens`: the experiment and what the report is about."""

    words: Callable[[Report], str] = titled
    said: tuple[str, ...] = ("about",)


@dataclass(frozen=True)
class ShortenedLine(Element):
    """A text, its end left out if it does not fit a line; nothing for an empty one."""

    words: Callable[[Report], str]
    style: str = ""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if text := " ".join(self.words(report).split()):
            yield Paragraph(shortened(plain_text(text), display.width), self.style)


@dataclass(frozen=True)
class ReadLine(ShortenedLine):
    """What the model read."""

    words: Callable[[Report], str] = text_read


@dataclass(frozen=True, kw_only=True)
class HowToRead(Element):
    """What the numbers mean."""

    said: tuple[str, ...] = ("how_to_read",)

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield Paragraph(plain_text(report.how_to_read), "note")


@dataclass(frozen=True)
class Sentences(Element):
    """Sentences about the result, each on lines of its own."""

    sentences: Callable[[Report, Display], Iterator[str]]
    style: str = ""

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield from (Paragraph(line, self.style) for line in self.sentences(report, display))


@dataclass(frozen=True)
class Notes(Element):
    """The notes that fit, after a blank line where they are `apart`; usually all, or so many lines.

    By default all else is fitted before them; with `least` so many lines are there in any case.
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
    """The notes of a report, and below them what its numbers mean."""
    yield from report.notes
    yield report.how_to_read


@dataclass(frozen=True)
class Special(Element):
    """What is special to one screen, as its function says in a line, and why no other part does it."""

    parts: Callable[[Report, Display], ScreenParts]
    because: str

    def sections(self, report: Report, display: Display) -> ScreenParts:
        yield from self.parts(report, display)


def rows_of(report: Report, table: str) -> Records[Any]:
    """The rows of the field of a result; none where it is empty."""
    return getattr(report.result, table) or Records(Record, {})


Header = str | tuple[str, ...]
"""What stands above a column: its lower line, or both lines."""


def header_lines(header: Header, name: str = "") -> tuple[str, ...]:
    """Both lines; without a header those of the name."""
    if not header:
        return split_header(name)
    return ("", header) if isinstance(header, str) else header


def interval(lower: float | None, upper: float | None, decimals: int) -> str:
    """`0.52-0.71`."""
    return NO_NUMBER if lower is None else f"{fixed(lower, decimals)}-{fixed(upper, decimals)}"


class TableColumn:
    """A column of a table, or several, or none where the rows lack it."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        """What it shows of these rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class NumberCells(TableColumn):
    """A column of numbers, by its name in the class of the rows; its header where that is another one.

    They have the decimals of the display, or so many. With `if_any` it is left out if no row has a number.
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


@dataclass(frozen=True)
class TextCells(TableColumn):
    """A column of texts, by its name in the class of the rows; `words` are what some of them are called.

    Each takes at most `most` cells of a terminal, or what other columns that are `beside` leave of its width.
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


@dataclass(frozen=True)
class RowCells(TableColumn):
    """A column of what a function makes of each row."""

    header: Header
    cell: Callable[[Any], str]
    left: bool = False

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return [Column(header_lines(self.header), [*map(self.cell, rows)], left=self.left)]


@dataclass(frozen=True)
class IntervalCells(TableColumn):
    """A column of intervals, `0.52-0.71`, by the names of their ends in the class of the rows."""

    lower: str = "lower"
    upper: str = "upper"
    header: Header = "95 %"
    decimals: int = DECIMALS

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        cells = [interval(row[self.lower], row[self.upper], self.decimals) for row in rows]
        return [Column(header_lines(self.header), cells, left=True)]


@dataclass(frozen=True)
class HalfWidthCells(TableColumn):
    """A column of `±0.01`, half of the interval of a mean, by the names of both; none without intervals."""

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
    """What LAYER:HEAD does not say of the place of heads, where that distinguishes them."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return place_columns(rows)


@dataclass(frozen=True)
class StatisticCells(TableColumn):
    """The statistics of heads, all or those with these names."""

    names: NamesOfColumns = lambda _, rows: rows.cells

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return statistic_columns(rows, self.names(report, rows), display.precision)


@dataclass(frozen=True)
class PatternCells(TableColumn):
    """What each head does on average."""

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return [patterns_on_average(rows)]


@dataclass(frozen=True)
class LookedAtCells(TableColumn):
    """The key that each head looks at most, from one token; `of` says for how many columns that takes."""

    does: str = "looks at"
    of: tuple[int, ...] = (0, 1, 2)

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        columns = looked_at_columns(rows, display, self.does)
        return columns if len(columns) in self.of else []


@dataclass(frozen=True)
class SpecialCells(TableColumn):
    """What is special to one table."""

    cells: Callable[[Report, Records[Any], Display], list[Column]]

    def columns(self, report: Report, rows: Records[Any], display: Display) -> list[Column]:
        return self.cells(report, rows, display)


@dataclass(frozen=True)
class HeadLabel(TableColumn):
    """LAYER:HEAD, behind its stack where there are several and `has_stacks`."""

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
    """The first rows of a table of the result, in its order: `usual` ones, as many as fit a terminal.

    `rows` is the field of the result, `title` says what the rows are of which there is room. Columns that do
    not fit are left out where the table `is_cut`, else they are in groups. `left_out` says below it what is
    not there.
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
        rows = rows_of(report, self.rows)
        usual, least = (
            count if isinstance(count, int) else count(report, display) for count in (self.usual, self.least)
        )
        most = len(rows) if self.most is None else min(self.most(report, display), len(rows))
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
    """The first rows of a table of the result with all of its columns, where it has rows."""

    table: str

    def sections(self, report: Report, display: Display) -> ScreenParts:
        if rows := rows_of(report, self.table):
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
    """A digit for each head in each tensor by layer and head; none where `highest` lines do not hold all.

    `by` is what the heads are sorted by. With `has_numbers` it is their numbers where each layer has a line.
    """

    by: Callable[[Report], str] = lambda _: ""
    highest: int | None = None
    has_numbers: bool = False

    def drawings(self, report: Report, display: Display) -> list[Elastic]:
        """The grids, without a usual line where there are too many."""
        grids = report.tensors.items() if self.shows(report) else ()
        drawings = [
            self._drawing(report, name, tensor, display) for name, tensor in grids if tensor.axes == PLACES
        ]
        is_low = self.highest is None or lines_of(drawings) <= self.highest
        return drawings if is_low else [replace(drawing, usual=0) for drawing in drawings]

    def _drawing(self, report: Report, name: str, tensor: NamedTensor, display: Display) -> Elastic:
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


def lines_of(drawings: Sequence[Elastic]) -> int:
    """The lines that grids of heads take, each with its title and a blank line."""
    return sum(drawing.most + 2 for drawing in drawings)


@dataclass(frozen=True)
class FirstScreen:
    """The first screen of a kind of result, in its parts from above.

    `next_steps` picks what to type next from what the command offers, and `next_head` the head to name in it
    (None: the first one of the report). `if_empty` says why a table has no rows, if that is an answer.
    `finding` is the first sentence of a page. `picture` is drawn by pictures in place of the tensors,
    `figures` besides them: of the statistics with these names.
    """

    kind: type[Result]
    parts: tuple[Element, ...]
    next_steps: Callable[[Report, tuple[str, ...]], tuple[str, ...]] = lambda _, steps: steps
    next_head: Callable[[Report], str | None] = lambda _: None
    if_empty: Mapping[str, str] = field(default_factory=dict)
    finding: Callable[[Report], Iterator[str]] | None = None
    picture: "Callable[[Report, Collection[str]], DrawnBlock | None]" = lambda *_: None
    figures: Callable[[Report, Collection[str]], Iterator[Curves | Spreads]] = lambda *_: iter(())

    def suits(self, report: Report) -> bool:
        """Whether a report has what it shows: one that was edited may not."""
        return isinstance(report.result, self.kind) and all(part.suits(report) for part in self.parts)

    def sections(self, report: Report, display: Display) -> ScreenParts:
        """The parts, which are still to be fitted to the height of the display; below the title what a report
        lacks.
        """
        for number, part in enumerate(self.parts):
            if part.shows(report):
                yield from part.sections(report, display)
            if number == 0 and report.missing:
                yield Paragraph(plain_text(report.missing), "line")
