"""The map of the chosen head: one line per query, or the whole map made to fit."""

from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attncli.views.browser.panel import Panel, fitted
from attncli.views.browser.tones import CHOSEN, DIM
from attncli.views.colormaps import Shading
from attncli.views.pooling import block_maximum
from attncli.views.terminal.palettes import NONE, levels

LONGEST_LABEL = 16
MARK_EVERY = 10
LABELLED_CELL_WIDTH, MOST_CELL_WIDTH = 5, 9
POINTER, KEY_POINTER = "▸", "▾"


@dataclass(frozen=True)
class Layout:
    """Cells of the labels, characters per cell of the map, rows and columns of numbers per cell.

    `is_whole`: all of the map is visible, and the labels are positions.
    """

    label: int
    cell_width: int
    block: tuple[int, int]
    rows_per_line: int
    is_whole: bool


def position_of(label: str) -> str:
    """The position, or the positions of a block, without the token."""
    return label.split()[0]


def strongest(shading: Shading, block: tuple[int, int]) -> np.ndarray:
    """Of each block the most prominent place: the highest, or the farthest from that of zero."""
    highest = block_maximum(shading.places, block)
    if not shading.is_diverging:
        return highest
    lowest = -block_maximum(-shading.places, block)
    return np.where(highest - 0.5 >= 0.5 - lowest, highest, lowest)


class HeadMap(Panel):
    """Rows are queries and columns are keys, whichever of them is chosen.

    `wants_whole` is None until the user asks for the whole map, or for lines.
    """

    wants_whole: bool | None = None
    _drawn: tuple[object, Layout] | None = None

    def toggle_whole(self) -> None:
        """From the whole map to one line per query, or back."""
        self.wants_whole = not self.layout_now.is_whole
        self.show()

    def _wanted_layout(self) -> Layout:
        rows, columns = self.choice.matrix.values.shape
        width, height = self.room
        labels = self.choice.labels[0]
        label_width = min(max(map(cell_len, labels)), LONGEST_LABEL, width // 3) + 2
        is_wide = columns > width - label_width
        if not (is_wide if self.wants_whole is None else self.wants_whole):
            cell_width = min(max((width - label_width) // columns, 1), MOST_CELL_WIDTH)
            return Layout(label_width, cell_width, (1, 1), 1, is_whole=False)
        # Cells that stand for as few numbers as possible, so that all fit.
        label_width = max(len(position_of(label)) for label in labels) + 2
        rows_per_line = 1 if self.depth == "none" else 2
        down, along = -(-rows // (height * rows_per_line)), -(-columns // max(width - label_width, 1))
        return Layout(label_width, 1, (down, along), rows_per_line, is_whole=True)

    def show(self) -> None:
        """Find the colours of all cells once, not for every line."""
        layout = self.layout_now = self._wanted_layout()
        if self._drawn != (self.choice.colouring, layout):
            self._drawn = self.choice.colouring, layout
            shading = self.choice.shading
            self._levels = levels(
                shading.places if layout.block == (1, 1) else strongest(shading, layout.block)
            )
        super().show()

    def heading(self) -> str:
        """What a cell stands for, or the positions of the keys."""
        layout = self.layout_now
        if layout.block != (1, 1):
            pooling = f"the largest of {layout.block[0]} × {layout.block[1]} per cell"
            if not self.choice.is_received:
                return " " * layout.label + pooling
            column = layout.label + self.choice.key // layout.block[1]
            if column > layout.label + len(pooling):
                return fitted(" " * layout.label + pooling, column) + KEY_POINTER
            return " " * column + f"{KEY_POINTER} {pooling}"
        return " " * layout.label + self._key_marks()[self.scroll_offset.x :]

    def _key_marks(self) -> str:
        """The labels of the keys above wide cells, else the position of every tenth key."""
        width, choice = self.layout_now.cell_width, self.choice
        chosen = choice.key if choice.is_received else None
        if width >= LABELLED_CELL_WIDTH:
            labels = [label.strip() for label in choice.labels[1]]
            if chosen is not None:
                labels[chosen] = KEY_POINTER + labels[chosen]
            return "".join(f"{fitted(label, width - 1)} " for label in labels)
        positions = range(0, self._levels.shape[1], MARK_EVERY)
        marks = "".join(fitted(str(i), MARK_EVERY * width) for i in positions)
        return (
            marks if chosen is None else marks[: chosen * width] + KEY_POINTER + marks[chosen * width + 1 :]
        )

    def num_lines(self) -> int:
        """Lines of one or two rows."""
        return -(-len(self._levels) // self.layout_now.rows_per_line)

    def num_columns(self) -> int:
        """Characters of the widest line."""
        return self.layout_now.label + int(self._levels.shape[1]) * self.layout_now.cell_width

    def line(self, number: int, width: int) -> list[Segment]:
        """The label of a line's first query, and its cells."""
        layout, tones = self.layout_now, self.tones(self.choice.shading)
        first = number * layout.rows_per_line
        chosen = not self.choice.is_received and number == self.line_to_show()
        label = self._label(number, chosen)
        skipped = self.scroll_offset.x // layout.cell_width
        rows = self._levels[first : first + layout.rows_per_line, skipped:]
        if layout.rows_per_line == 1:
            return [label, *tones.cells(rows[0], layout.cell_width)]
        lower = rows[1] if len(rows) > 1 else np.full_like(rows[0], NONE)
        return [label, *tones.half_blocks(rows[0], lower)]

    def _label(self, number: int, chosen: bool) -> Segment:
        layout, choice = self.layout_now, self.choice
        pointer = POINTER if chosen else " "
        if not layout.is_whole:
            name = choice.labels[0][number]
        else:
            row = choice.query if chosen else number * layout.rows_per_line * layout.block[0]
            name = position_of(choice.labels[0][row])
        return Segment(f"{pointer}{fitted(name, layout.label - 2)} ", CHOSEN if chosen else DIM)

    def line_to_show(self) -> int | None:
        """The chosen query's."""
        if self.choice.is_received:
            return None
        return self.choice.query // (self.layout_now.block[0] * self.layout_now.rows_per_line)

    def column_to_show(self) -> int | None:
        """The chosen key's, or that of the key with the largest weight."""
        layout, choice = self.layout_now, self.choice
        places = np.nan_to_num(choice.shading.places[choice.query], nan=-1.0)
        key = choice.key if choice.is_received else int(np.argmax(places))
        return layout.label + int(key) // layout.block[1] * layout.cell_width

    def clicked(self, line: int, x: int) -> bool:
        """Choose the query of the line, or the key of the column where the question is who looks at it."""
        layout, choice = self.layout_now, self.choice
        query = line * layout.rows_per_line * layout.block[0]
        key = (x - layout.label + self.scroll_offset.x) // layout.cell_width * layout.block[1]
        token = key if choice.is_received else query
        if not 0 <= token < len(choice.token_labels):
            return False
        choice.choose_token(token)
        return True
