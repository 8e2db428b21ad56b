"""What a report shows to people, as texts that are not laid out yet, and the labels of its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rich.cells import cell_len

from attncli.report import Report
from attncli.views import Display
from attncli.views.labels import token_texts
from attncli.views.matrices import first_position, tokens_of
from attncli.views.numbers import NO_NUMBER, fixed

GAP = 2
ROW_WIDTH, COLUMN_WIDTH = 20, 9


@dataclass(frozen=True)
class Paragraph:
    """A text: the `title` of a report or of a `step`, `prose`, or `bold` or `dim` lines of their own.

    A blank line comes before a step, prose and its `lead`, and none before a `line` and a dim `note`, which
    are sentences.
    """

    text: str
    style: str


@dataclass(frozen=True)
class Values:
    """Sentences and single numbers by name."""

    sentences: Mapping[str, str]
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, the cells below it, their alignment, and the rows in bold."""

    header: tuple[str, ...]
    cells: Sequence[str]
    left: bool = False
    emphasis: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        """Terminal cells that the widest line takes."""
        return max(map(cell_len, (*self.header, *self.cells)), default=0)


@dataclass(frozen=True)
class Grid:
    """A table: its title, if any, the labels of its rows, and its columns.

    In several groups of columns, the first `repeated` ones lead each group, as the labels do.
    """

    title: str
    label: Column
    columns: Sequence[Column]
    repeated: int = 0

    def groups(self, width: int | None) -> list[Sequence[Column]]:
        """The columns in groups that each fit the width beside the labels; at least one column per group."""
        if width is None or not self.columns:
            return [self.columns]
        leading, columns = self.columns[: self.repeated], self.columns[self.repeated :]
        taken = self.label.width + sum(GAP + column.width for column in leading)
        starts, used = [0], taken
        for i, column in enumerate(columns):
            needed = GAP + column.width
            if used + needed > width and i > starts[-1]:
                starts.append(i)
                used = taken
            used += needed
        return [[*leading, *columns[a:b]] for a, b in pairwise([*starts, len(columns)])]

    def fits(self, width: int | None) -> bool:
        """Whether one group holds every column."""
        return len(self.groups(width)) == 1

    def first_group(self, width: int | None) -> "Grid":
        """The table without the columns that do not fit the width."""
        return replace(self, columns=self.groups(width)[0])


@dataclass(frozen=True)
class Drawing:
    """A picture in lines; `mentioned` are the tokens that it shows shortened, by what and where they are."""

    title: str
    lines: Sequence[str]
    mentioned: Mapping[tuple[str, int], str] = field(default_factory=dict)


class TableLabels:
    """The labels of one report: positions and tokens; a narrow screen shortens the tokens only."""

    def __init__(self, report: Report, display: Display) -> None:
        self.report, self.precision, width = report, display.precision, display.width
        self.row_width = None if width is None else max(6, min(ROW_WIDTH, width // 4))
        self.column_width = None if width is None else max(4, min(COLUMN_WIDTH, width // 8))

    def rows(self, axis: str, count: int) -> Column:
        """The column that names the rows."""
        first, names = first_position(self.report, axis), tokens_of(self.report, axis)
        digits = len(str(first + count - 1))
        texts = token_texts(names, count, self.row_width)
        cells = [f"{i:>{digits}} {name}".rstrip() for i, name in enumerate(texts, first)]
        return Column(("", axis), cells, left=True)

    def columns(self, axis: str, count: int) -> list[tuple[str, str]]:
        """A header of two lines for each column."""
        names = token_texts(tokens_of(self.report, axis), count, self.column_width)
        return [(str(i), name) if name else ("", str(i)) for i, name in enumerate(names)]

    def place(self, axis: str, position: int) -> str:
        """A position and, where there is one, the token at it."""
        tokens = tokens_of(self.report, axis)[position : position + 1] if position >= 0 else ()
        shown = str(position + first_position(self.report, axis))
        return " ".join([shown, *token_texts(tokens, 0, self.row_width)])

    def key(self, key: int, weight: float) -> str:
        """A key that a query looks at, with its weight."""
        if key < 0:
            return NO_NUMBER
        (name,) = token_texts(tokens_of(self.report, "key")[key : key + 1], 1, self.column_width)
        return " ".join(filter(None, (str(key), name, fixed(weight, self.precision))))


def split_header(name: str) -> tuple[str, str]:
    """A name as the two lines of a header: `max`, `weight`."""
    first, _, second = name.rpartition("_")
    return first.replace("_", " "), second


Section = Paragraph | Values | Grid | Drawing
