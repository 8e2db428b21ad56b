"""Sections before layout: texts, tables, drawings, and parts that adapt to the available lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from operator import attrgetter

from rich.cells import cell_len

GAP = 2


@dataclass(frozen=True)
class Paragraph:
    """A text: the `title` of a report or of a `step`, `prose`, or lines in `bold` or `dim`.

    A blank line comes before a step, prose and its `lead`, but not before a `line` or a dim `note`, which are
    sentences.
    """

    text: str
    style: str


@dataclass(frozen=True)
class NamedValues:
    """Sentences and single numbers, by name."""

    sentences: Mapping[str, str]
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, the cells, their alignment, and which rows are bold.

    If the columns are split into groups, a `repeated` column leads each group, as the labels do.
    """

    header: tuple[str, ...]
    cells: Sequence[str]
    left: bool = False
    emphasis: frozenset[int] = frozenset()
    repeated: bool = False

    @property
    def width(self) -> int:
        """The number of terminal cells of its widest line."""
        return max(map(cell_len, (*self.header, *self.cells)), default=0)


@dataclass(frozen=True)
class Grid:
    """A table with an optional title, row labels, and columns."""

    title: str
    label: Column
    columns: Sequence[Column]

    def groups(self, width: int | None) -> list[Sequence[Column]]:
        """Split the columns into groups that fit the width beside the labels, at least one column each."""
        if width is None or not self.columns:
            return [self.columns]
        leading = [*takewhile(attrgetter("repeated"), self.columns)]
        columns = self.columns[len(leading) :]
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
        """Return True if all columns fit into one group."""
        return len(self.groups(width)) == 1

    def first_group(self, width: int | None) -> "Grid":
        """Return the table without the columns that exceed the width."""
        return replace(self, columns=self.groups(width)[0])


@dataclass(frozen=True)
class Drawing:
    """A picture in lines; `mentioned` are the tokens that the picture shortens, by text and position."""

    title: str
    lines: Sequence[str]
    mentioned: Mapping[tuple[str, int], str] = field(default_factory=dict)


Section = Paragraph | NamedValues | Grid | Drawing


LEAST_ROWS = LEAST_LINES = 3
"""The default minimum number of rows in a table and of lines in a drawing."""


@dataclass(frozen=True)
class Elastic:
    """A part of the first screen whose number of rows can vary: lines of a table, a map, or notes.

    `of` makes the part with a given number of rows. If the height of the screen is unknown, the part has
    `usual` rows. In a terminal, it gets `least` rows (with 0, it may be left out), then up to `usual`, and
    finally up to `most` rows, as space allows; parts with a lower `rank` are served first. `most` is the
    number of rows that exist, and so limits the other two.
    """

    of: Callable[[int], Iterable[Section]]
    usual: int
    least: int = 0
    most: int = 0
    rank: int = 0

    def __post_init__(self) -> None:
        if self.most:
            object.__setattr__(self, "usual", min(self.usual, self.most))
            object.__setattr__(self, "least", min(self.least, self.usual))


ScreenParts = Iterator[Section | Elastic]
