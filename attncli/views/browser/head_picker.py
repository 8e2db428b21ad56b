"""The heads: a grid of layers and heads, or a ranking by one statistic."""

import numpy as np
from rich.segment import Segment

from attncli.plain_text import plain_text
from attncli.views.browser.panel import Panel, fitted
from attncli.views.browser.tones import CHOSEN, DIM
from attncli.views.colormaps import shading
from attncli.views.numbers import scalar
from attncli.views.terminal.palettes import levels

CELL = 2
PRECISION = 4
LARGEST_NUMBER = 9


class HeadPicker(Panel):
    """Shaded by the chosen statistic in the grid; numbers in the ranking."""

    def heading(self) -> str:
        """The statistic in the ranking; the numbers of the heads above the grid."""
        choice = self.choice
        if choice.is_ranked:
            order = "smallest" if choice.smallest_first else "largest"
            return f"{order} {plain_text(choice.statistic or '')}"
        first, last = self._columns_seen()
        margin = " " * (self._margin + 1)
        return margin + "".join(f"{i:<{2 * CELL}}" for i in range(first, last) if (i - first) % 2 == 0)

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
        row = slice(number * grid.num_columns + first, number * grid.num_columns + last)
        values = grid.statistics.get(choice.statistic or "")
        numbers = np.full((1, grid.num_places), np.nan) if values is None else values.reshape(1, -1)
        shaded = shading(numbers)
        tones, row_levels = self.tones(shaded), levels(shaded.places)[0, row]
        pieces = [Segment(f"{grid.row_name(number):>{self._margin}} ", DIM)]
        chosen = choice.number - row.start
        if not 0 <= chosen < last - first:
            return pieces + tones.cells(row_levels, CELL)
        before, after = row_levels[:chosen], row_levels[chosen + 1 :]
        middle = tones.chosen(int(row_levels[chosen]))
        return [*pieces, *tones.cells(before, CELL), middle, *tones.cells(after, CELL)]

    def _ranked(self, number: int, width: int) -> list[Segment]:
        grid = self.choice.grid
        values = grid.statistics[self.choice.statistic or ""]
        value = fitted(scalar(float(values.ravel()[number]), PRECISION), LARGEST_NUMBER).strip()
        name = grid.name_of(number)
        style = CHOSEN if number == self.choice.number else None
        room = max(width - LARGEST_NUMBER - 1, 0)
        return [Segment(f"{fitted(name, room)} {value:>{LARGEST_NUMBER}}", style)]

    def line_to_show(self) -> int:
        """The chosen head's."""
        choice = self.choice
        if choice.is_ranked:
            return choice.ranking.index(choice.number)
        return choice.number // choice.grid.num_columns

    def clicked(self, line: int, x: int) -> bool:
        """Choose the head under the mouse."""
        choice, grid = self.choice, self.choice.grid
        if not 0 <= line < self.num_lines():
            return False
        if choice.is_ranked:
            choice.choose_head(choice.ranking[line])
            return True
        first, last = self._columns_seen()
        column = first + (x - self._margin - 1) // CELL
        if not first <= column < last:
            return False
        choice.choose_head(line * grid.num_columns + column)
        return True
