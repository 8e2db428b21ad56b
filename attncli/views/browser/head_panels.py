"""The panels on the left: the heads as a grid or a ranking, and the statistics of the chosen one."""

import numpy as np
from rich.segment import Segment

from attncli.plain_text import plain_text
from attncli.views.browser.panel import Panel, fitted
from attncli.views.browser.tones import BOLD, CHOSEN, DIM
from attncli.views.colormaps import shading
from attncli.views.numbers import scalar
from attncli.views.terminal.palettes import levels

CELL = 2
PRECISION = 4
LARGEST_NUMBER = 9


class HeadPicker(Panel):
    """A grid of layers and heads, shaded by the chosen statistic; or a ranking by it, with its numbers."""

    def heading(self) -> str:
        """The statistic in the ranking; the numbers of the heads above the grid."""
        choice = self.choice
        if choice.is_ranked:
            order = "smallest" if choice.smallest_first else "largest"
            return f"{order} {plain_text(choice.statistic or '')}"
        first, last = self._columns_seen()
        margin = " " * (self._margin + 1)
        return margin + "".join(f"{i:<{2 * CELL}}" for i in range(first, last, 2))

    def num_lines(self) -> int:
        """Layers, or heads in the ranking."""
        grid = self.choice.grid
        return grid.num_places if self.choice.is_ranked else grid.num_rows

    @property
    def _margin(self) -> int:
        grid = self.choice.grid
        return max(len(grid.row_name(row)) for row in (0, grid.num_rows - 1))

    def _columns_seen(self) -> tuple[int, int]:
        """The heads that fit beside each other, the chosen one among them."""
        grid, room = self.choice.grid, max(1, (self.size.width - self._margin - 2) // CELL)
        column = self.choice.number % grid.num_columns
        first = column // room * room
        return first, min(first + room, grid.num_columns)

    def line(self, number: int, width: int) -> list[Segment]:
        """A layer's heads, or one head with its number."""
        choice = self.choice
        if choice.is_ranked:
            return self._ranked(choice.ranking[number], width)
        grid = choice.grid
        first, last = self._columns_seen()
        start = number * grid.num_columns + first
        values = grid.statistics.get(choice.statistic or "", np.full(grid.num_places, np.nan))
        shaded = shading(values.reshape(1, -1))
        tones, row = self.tones(shaded), levels(shaded.places)[0, start : start + last - first]
        pieces = [Segment(f"{grid.row_name(number):>{self._margin}} ", DIM)]
        chosen = choice.number - start
        if not 0 <= chosen < len(row):
            return pieces + tones.cells(row, CELL)
        before, middle, after = row[:chosen], tones.chosen(int(row[chosen])), row[chosen + 1 :]
        return [*pieces, *tones.cells(before, CELL), middle, *tones.cells(after, CELL)]

    def _ranked(self, number: int, width: int) -> list[Segment]:
        grid = self.choice.grid
        values = grid.statistics[self.choice.statistic or ""]
        value = fitted(scalar(float(values.ravel()[number]), PRECISION), LARGEST_NUMBER).strip()
        name = fitted(grid.name_of(number), max(width - LARGEST_NUMBER - 1, 0))
        style = CHOSEN if number == self.choice.number else None
        return [Segment(f"{name} {value:>{LARGEST_NUMBER}}", style)]

    def line_to_show(self) -> int:
        """The chosen head's."""
        choice = self.choice
        if choice.is_ranked:
            return choice.ranking.index(choice.number)
        return choice.number // choice.grid.num_columns

    def clicked(self, line: int, x: int) -> bool:
        """Choose the head under the mouse."""
        choice, grid = self.choice, self.choice.grid
        if choice.is_ranked:
            choice.choose_head(choice.ranking[line])
            return True
        first, last = self._columns_seen()
        column = first + (x - self._margin - 1) // CELL
        if not first <= column < last:
            return False
        choice.choose_head(line * grid.num_columns + column)
        return True


class StatisticsPanel(Panel):
    """The statistics of the chosen head, then of the chosen row or key; a click on the former ranks by it."""

    def heading(self) -> str:
        """Which head."""
        choice = self.choice
        return choice.grid.name_of(choice.number) or "this map"

    def _lines(self) -> list[tuple[str, float | None]]:
        choice = self.choice
        of_head = [(name, float(values[choice.place])) for name, values in choice.grid.statistics.items()]
        of_token = choice.token_statistics
        if not of_token:
            return [*of_head]
        kind = "key" if choice.is_received else "row"
        return [*of_head, (f"{kind} {choice.token_labels[choice.token].strip()}", None), *of_token.items()]

    def num_lines(self) -> int:
        """Those of the head, then those of the row or key."""
        return len(self._lines())

    def line(self, number: int, width: int) -> list[Segment]:
        """A name and a number."""
        name, value = self._lines()[number]
        if value is None:
            return [Segment(fitted(name, width), BOLD)]
        shown = scalar(value, PRECISION)
        room = max(width - len(shown) - 1, 0)
        is_chosen = number < len(self.choice.grid.statistics) and name == self.choice.statistic
        style = BOLD if is_chosen else None
        return [Segment(fitted(plain_text(name), room), style or DIM), Segment(f" {shown}", style)]

    def clicked(self, line: int, x: int) -> bool:
        """Rank by the statistic under the mouse."""
        names = list(self.choice.grid.statistics)
        if line >= len(names):
            return False
        self.choice.statistic = names[line]
        return True
