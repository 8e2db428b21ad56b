"""What a report shows to people, as texts that are not laid out yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

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


def split_header(name: str) -> tuple[str, str]:
    """A name as the two lines of a header: `max`, `weight`."""
    first, _, second = name.rpartition("_")
    return first.replace("_", " "), second


Section = Paragraph | Values | Grid | Drawing
