"""Sections of texts, tables and drawings that are not laid out yet, and parts that fit the room there is."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from operator import attrgetter

from rich.cells import cell_len

GAP = 2


@dataclass(frozen=True)
class Paragraph:
    """A text: the `title` of a report or of a `step`, `prose`, or `bold` or `dim` lines of their own.

    A blank line comes before a step, prose and its `lead`, and none before a `line` and a dim `note`, which
    are sentences.
    """

    text: str
    style: str


@dataclass(frozen=True)
class NamedValues:
    """Sentences and single numbers by name."""

    sentences: Mapping[str, str]
    numbers: Mapping[str, str]


@dataclass(frozen=True)
class Column:
    """A header of one or two lines, the cells below it, their alignment, and the rows in bold.

    In several groups of columns the first ones that are `repeated` lead each group, as the labels do.
    """

    header: tuple[str, ...]
    cells: Sequence[str]
    left: bool = False
    emphasis: frozenset[int] = frozenset()
    repeated: bool = False

    @property
    def width(self) -> int:
        """Terminal cells that the widest line takes."""
        return max(map(cell_len, (*self.header, *self.cells)), default=0)


@dataclass(frozen=True)
class Grid:
    """A table: its title, if any, the labels of its rows, and its columns."""

    title: str
    label: Column
    columns: Sequence[Column]

    def groups(self, width: int | None) -> list[Sequence[Column]]:
        """The columns in groups that each fit the width beside the labels; at least one column per group."""
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


Section = Paragraph | NamedValues | Grid | Drawing


@dataclass(frozen=True)
class Elastic:
    """A part of a first screen, `of` some rows: lines of a table, of a map, of notes.

    It has its `usual` rows where the height is not known. In the lines of a terminal it has `least` rows (0:
    it may go), then up to its usual ones, then up to `most`, as far as there is room: the part of the lowest
    `rank` first. With `most`, the number of rows that there are, the others are no more than that.
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
