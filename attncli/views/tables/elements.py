"""What people are shown of a report, as texts that nobody has laid out yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.cells import cell_len

GAP = 2


@dataclass(frozen=True)
class Paragraph:
    """A text: the `title` of a report or of a `step`, `prose`, or `bold` or `dim` lines of their own.

    A step begins, prose and its `lead` stand, below a blank line. A `line` and a dim `note` are sentences
    without one.
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
    """A header of one or two lines, the cells below it, and how they stand."""

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

    Where they stand in several groups, the first `repeated` columns lead each of them, as the labels do.
    """

    title: str
    label: Column
    columns: Sequence[Column]
    repeated: int = 0

    def groups(self, width: int | None) -> list[Sequence[Column]]:
        """The columns in groups that each fit the width beside the labels; at least one column a group."""
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


@dataclass(frozen=True)
class Drawing:
    """A picture in lines; `mentioned` are the tokens that it shows cut short, by what and where they are."""

    title: str
    lines: Sequence[str]
    mentioned: Mapping[tuple[str, int], str]


Section = Paragraph | Values | Grid | Drawing
