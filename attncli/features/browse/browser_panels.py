"""The panels of the browser: the chosen head's map, the heads, the statistics, and a token's bars."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from attncli.features.browse.browser_choice import Choice
from attncli.records.columns import Records
from attncli.records.report import PLACES
from attncli.records.surveys import HeadsOfPattern, HeadSurvey, StrongestHead
from attncli.system.plain_text import plain_text
from attncli.views.colours import Palette, Shading, levels, palette, picture_palette, shading
from attncli.views.head_screens import pattern_letter
from attncli.views.heatmap import ticks
from attncli.views.matrices import block_maximum, head_name
from attncli.views.overlays import fitted_size, painted, shaded, token_at
from attncli.views.terminal import SHAPES, cell_texts, character_lines, half_blocks
from attncli.views.texts import bar, fixed, scalar, shortened

BOLD, DIM, CHOSEN = Style(bold=True), Style(dim=True), Style(reverse=True, bold=True)


@lru_cache(maxsize=16384)
def _style(parameters: str) -> Style:
    """Return the style that an escape sequence with these parameters sets."""
    ((_, _, style),) = Text.from_ansi(f"\x1b[{parameters}m.").spans
    assert isinstance(style, Style)
    return style


def half_block_segments(levels: np.ndarray, palette: Palette) -> list[Segment]:
    """Draw one or two rows of levels as a single line of half-blocks."""
    inks, papers = palette.foregrounds, palette.backgrounds
    parts = (part[0].tolist() for part in half_blocks(levels, len(inks) - 1))
    return [
        Segment(SHAPES[shape] * len(list(run)), _style(f"{inks[ink]};{papers[paper]}"))
        for (shape, ink, paper), run in groupby(zip(*parts, strict=True))
    ]


@dataclass(frozen=True)
class Tones:
    """Renders the numbers of a map at a terminal's colour depth, with the characters of a heatmap."""

    depth: str
    is_diverging: bool

    @property
    def palette(self) -> Palette:
        """The palette that a heatmap uses."""
        return palette(self.depth, self.is_diverging)

    def cells(self, places: np.ndarray, cell_width: int) -> list[Segment]:
        """Draw a line of cells, one per number, each `cell_width` characters wide."""
        if self.depth == "none":
            return [Segment(line) for line in character_lines(places[np.newaxis], cell_width)]
        texts, fills = cell_texts(self.palette, cell_width), self.palette.fills
        return [
            Segment(texts[level] * len(list(run)), _style(fills[level][0]))
            for level, run in groupby(levels(places).tolist())
        ]

    def half_blocks(self, places: np.ndarray) -> list[Segment]:
        """Draw one or two rows of numbers as a single line of half-blocks."""
        return half_block_segments(levels(places), self.palette)

    def marked(self, text: str, place: float, *, is_chosen: bool) -> Segment:
        """Return black or white text on the colour of the cell.

        The chosen text is bold, and reversed if there are no colours.
        """
        if self.depth == "none" or np.isnan(place):
            return Segment(text, CHOSEN if is_chosen else None)
        (level,) = levels(np.array([place])).tolist()
        contrast = "30" if place > 0.5 and not self.is_diverging else "97"
        weight = "1;" if is_chosen else ""
        return Segment(text, _style(f"{weight}{contrast};{self.palette.backgrounds[level]}"))


def fitted(text: str, width: int) -> str:
    """Return the text cut or padded to exactly `width` cells. A truncated text ends in an ellipsis."""
    return set_cell_size(shortened(text, width), width) if width > 0 else ""


class Panel(ScrollView, can_focus=False):
    """A panel that draws only its visible lines. Line 0 is a fixed heading.

    Subclasses define the number of lines, the content of each line, and the effect of a click.
    """

    def __init__(self, choice: Choice, *, depth: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.choice, self.depth = choice, depth

    def tones(self, shading: Shading) -> Tones:
        """Return the tones that show a shading on this terminal."""
        return Tones(self.depth, shading.is_diverging)

    def heading(self) -> str:
        """Return the heading line."""
        raise NotImplementedError

    def num_lines(self) -> int:
        """Return the number of lines below the heading."""
        raise NotImplementedError

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw a line below the heading at this width."""
        raise NotImplementedError

    def line_to_show(self) -> int | None:
        """Return the line that must be visible."""
        return None

    def clicked(self, line: int, x: int) -> bool:
        """Handle a click on a line below the heading. Return True if the click changed the choice."""
        return False

    def num_columns(self) -> int:
        """Return the width of the widest line in cells. Wider panels scroll."""
        return 0

    def column_to_show(self) -> int | None:
        """Return the column that must be visible."""
        return None

    @property
    def room(self) -> tuple[int, int]:
        """The number of columns, and of lines below the heading."""
        size = self.scrollable_content_region.size
        return size.width, max(size.height - 1, 1)

    def show(self) -> None:
        """Redraw after a change of the choice, and scroll the chosen line into view."""
        self.virtual_size = Size(self.num_columns(), self.num_lines() + 1)
        width, height = self.room
        if self.num_columns() > width and self.container_size and not self.show_horizontal_scrollbar:
            self.call_after_refresh(self.show)  # the scrollbar will take up a line, but does not exist yet
        line, column = self.line_to_show(), self.column_to_show()
        y = None if line is None else min(max(round(self.scroll_target_y), line - height + 1), line)
        x = None if column is None else min(max(round(self.scroll_target_x), column - width + 1), column)
        self.scroll_to(x, y, animate=False, force=True)
        self.refresh()

    def on_resize(self) -> None:
        """Redraw at the new width."""
        self.show()

    def render_line(self, y: int) -> Strip:
        """Draw the heading, or the line that is scrolled to this place."""
        width, _ = self.room
        if y == 0:
            segments = [Segment(fitted(self.heading(), width), BOLD)]
        else:
            number = y - 1 + self.scroll_offset.y
            segments = self.line(number, width) if number < self.num_lines() else []
        return Strip(segments).adjust_cell_length(width)

    def on_click(self, event: Click) -> None:
        """Choose the cell under the mouse."""
        offset = event.get_content_offset(self)
        if offset is not None and offset.y > 0:
            line = offset.y - 1 + self.scroll_offset.y
            if line < self.num_lines() and self.clicked(line, offset.x):
                self.post_message(self.Chosen())

    class Chosen(Message):
        """Posted when the mouse has changed the choice."""


LONGEST_LABEL = 16
LABELLED_CELL_WIDTH, MOST_CELL_WIDTH = 5, 9
MOST_LINES_PER_ROW = 4
POINTER, KEY_POINTER = "▸", "▾"


@dataclass(frozen=True)
class Layout:
    """The sizes of a map: the width of labels, and the characters, rows and columns of numbers of each cell.

    A query takes several lines if all queries fit. With `is_whole`, the whole map is visible, and positions
    are the labels.
    """

    label: int
    cell_width: int
    block: tuple[int, int]
    rows_per_line: int
    is_whole: bool
    lines_per_row: int = 1

    def first_line(self, row: int) -> int:
        """Return the first screen line of a row of numbers."""
        return row // (self.block[0] * self.rows_per_line) * self.lines_per_row

    def row_at(self, line: int) -> int:
        """Return the index of the first row of numbers that a screen line shows."""
        return line // self.lines_per_row * self.rows_per_line * self.block[0]


def strongest(shading: Shading, block: tuple[int, int]) -> np.ndarray:
    """Return the most prominent number of each block.

    This is the highest number, or the number farthest from zero on the colour map.
    """
    highest = block_maximum(shading.places, block)
    if not shading.is_diverging:
        return highest
    lowest = -block_maximum(-shading.places, block)
    return np.where(highest - 0.5 >= 0.5 - lowest, highest, lowest)


class HeadMap(Panel):
    """A map with queries as rows and keys as columns, whichever of the two is chosen.

    `wants_whole` is None until the user asks for the whole map or for one line per query.
    """

    wants_whole: bool | None = None
    _drawn: tuple[object, Layout] | None = None

    def toggle_whole(self) -> None:
        """Switch between the whole map and one line per query."""
        self.wants_whole = not self.layout_now.is_whole
        self.show()

    def _wanted_layout(self) -> Layout:
        rows, columns = self.choice.matrix.values.shape
        width, height = self.room
        labels = self.choice.labels[0]
        label_width = min(max(map(cell_len, labels)), LONGEST_LABEL, width // 3) + 2
        is_wide = columns > width - label_width
        if not (is_wide if self.wants_whole is None else self.wants_whole):
            most = max(MOST_CELL_WIDTH, self._key_label_width)
            cell_width = min(max((width - label_width) // columns, 1), most)
            lines_per_row = max(1, min(height // rows, MOST_LINES_PER_ROW))
            return Layout(label_width, cell_width, (1, 1), 1, is_whole=False, lines_per_row=lines_per_row)
        # Put as few numbers in each cell as possible while still showing the whole map.
        label_width = max(map(len, self.choice.positions)) + 2
        rows_per_line = 1 if self.depth == "none" else 2
        down, along = -(-rows // (height * rows_per_line)), -(-columns // max(width - label_width, 1))
        return Layout(label_width, 1, (down, along), rows_per_line, is_whole=True)

    @property
    def _key_label_width(self) -> int:
        """The width of the longest key label, with a pointer before it and a space after it."""
        return min(max(map(cell_len, self.choice.labels[1])), LONGEST_LABEL) + 2

    def labels_width(self, share: int, most: int) -> int | None:
        """Return the smallest width, up to `most`, at which the key labels fit above their columns.

        Return None if they already fit in the map's share of the width, or if they do not fit in `most`.
        """
        labels, keys = self.choice.labels
        label_width = min(max(map(cell_len, labels)), LONGEST_LABEL) + 2
        wanted = min(label_width + len(keys) * self._key_label_width, most)
        return wanted if wanted > max(share, label_width + len(keys) * LABELLED_CELL_WIDTH) else None

    def show(self) -> None:
        """Compute the colours of all cells at once rather than line by line."""
        layout = self.layout_now = self._wanted_layout()
        if self._drawn != (self.choice.colouring, layout):
            self._drawn = self.choice.colouring, layout
            shading = self.choice.shading
            self._places = shading.places if layout.block == (1, 1) else strongest(shading, layout.block)
        super().show()

    def heading(self) -> str:
        """Return the size of a cell's block, or the key positions."""
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
        """Return the key labels above wide cells, or some positions, as above a heatmap."""
        width, choice = self.layout_now.cell_width, self.choice
        chosen = choice.key if choice.is_received else None
        if width >= LABELLED_CELL_WIDTH:
            labels = [label.strip() for label in choice.labels[1]]
            if chosen is not None:
                labels[chosen] = KEY_POINTER + labels[chosen]
            return "".join(f"{fitted(label, width - 1)} " for label in labels)
        marks = ticks(choice.axes[1], 1, width).text
        if chosen is None:
            return marks
        return marks[: chosen * width].ljust(chosen * width) + KEY_POINTER + marks[chosen * width + 1 :]

    def num_lines(self) -> int:
        """Return the number of lines, each of which shows one or two rows."""
        return -(-len(self._places) // self.layout_now.rows_per_line) * self.layout_now.lines_per_row

    def num_columns(self) -> int:
        """Return the width of the widest line."""
        return self.layout_now.label + int(self._places.shape[1]) * self.layout_now.cell_width

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw the label of the first query of a line, followed by the cells of the line."""
        layout, tones = self.layout_now, self.tones(self.choice.shading)
        first = number // layout.lines_per_row * layout.rows_per_line
        skipped = self.scroll_offset.x // layout.cell_width
        rows = self._places[first : first + layout.rows_per_line, skipped:]
        if layout.rows_per_line == 1:
            return [self._label(number), *tones.cells(rows[0], layout.cell_width)]
        return [self._label(number), *tones.half_blocks(rows)]

    def _label(self, number: int) -> Segment:
        layout, choice = self.layout_now, self.choice
        if number % layout.lines_per_row:
            return Segment(" " * layout.label)
        is_chosen = not choice.is_received and number == self.line_to_show()
        pointer = POINTER if is_chosen else " "
        row = choice.query if is_chosen else layout.row_at(number)
        name = choice.positions[row] if layout.is_whole else choice.labels[0][row]
        return Segment(f"{pointer}{fitted(name, layout.label - 2)} ", CHOSEN if is_chosen else DIM)

    def line_to_show(self) -> int | None:
        """Return the line that shows the chosen query."""
        if self.choice.is_received:
            return None
        return self.layout_now.first_line(self.choice.query)

    def column_to_show(self) -> int | None:
        """Return the column of the chosen key, or of the key with the largest weight."""
        layout, choice = self.layout_now, self.choice
        places = np.nan_to_num(choice.shading.places[choice.query], nan=-1.0)
        key = choice.key if choice.is_received else int(np.argmax(places))
        return layout.label + int(key) // layout.block[1] * layout.cell_width

    def clicked(self, line: int, x: int) -> bool:
        """Choose the query of the line or, if the view shows who looks at a key, the key of the column."""
        layout, choice = self.layout_now, self.choice
        query = layout.row_at(line)
        key = (x - layout.label + self.scroll_offset.x) // layout.cell_width * layout.block[1]
        token = key if choice.is_received else query
        if not 0 <= token < len(choice.token_labels):
            return False
        choice.choose_token(token)
        return True


class PictureMap(Panel):
    """The picture, shaded with the weights of the chosen token. A click chooses a patch."""

    _map_size = (1, 1)

    def heading(self) -> str:
        """Return the token, and its total weight on the picture."""
        choice = self.choice
        token = choice.token_labels[choice.token].strip()
        who = f"who looks at {token}" if choice.is_received else f"where {token} looks"
        name, share = plain_text(choice.look.picture.name), choice.look.share
        return f"{who}, {100 * share:.0f}% on {name}" if np.isfinite(share) else f"{who}: {name}"

    def num_lines(self) -> int:
        """Return the number of lines that fit."""
        return self._map_size[1] if self.choice.picture else 0

    def show(self) -> None:
        """Paint the picture once rather than line by line."""
        choice = self.choice
        if choice.picture is not None:
            self._map_size = columns, lines = fitted_size(choice.picture, *self.room)
            self._shade = shaded(
                choice.look, columns, lines * (1 if self.depth == "none" else 2), choice.colours.scale
            )
            self._levels, self._palette = levels(self._shade.places), None
            if self.depth in ("256", "truecolor"):
                self._levels, self._palette = picture_palette(
                    painted(choice.picture, self._shade), self.depth
                )
        super().show()

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw two rows as colours, or one row as characters."""
        if self.depth == "none":
            return self.tones(self._shade).cells(self._shade.places[number], 1)
        return half_block_segments(
            self._levels[2 * number : 2 * number + 2], self._palette or self.tones(self._shade).palette
        )

    def clicked(self, line: int, x: int) -> bool:
        """Choose the patch under the mouse if the map's tokens are patches."""
        choice, (columns, lines) = self.choice, self._map_size
        if choice.picture is None or not choice.has_one_text or not (x < columns and line < lines):
            return False
        token = token_at(choice.picture, (x + 0.5) / columns, (line + 0.5) / lines)
        if token is not None:
            choice.choose_token(token)
        return token is not None


CELL = 2
PRECISION = 4
LARGEST_NUMBER = 9
REMOVED = "×"


class HeadPicker(Panel):
    """A grid of layers and heads with pattern letters, or a ranking of the heads by the chosen statistic.

    The statistic shades the grid. A cross marks removed heads.
    """

    def heading(self) -> str:
        """Return the statistic that heads are ranked by, or the head numbers above the grid."""
        choice = self.choice
        if choice.ranking.is_on:
            order = "smallest" if choice.ranking.smallest_first else "largest"
            return f"{order} {plain_text(choice.ranking.statistic or '')}"
        first, last = self._columns_seen()
        margin = " " * (self._margin + 1 + bool(choice.grid.letters))
        return margin + "".join(f"{i:<{2 * CELL}}" for i in range(first, last, 2))

    @property
    def _axes(self) -> str:
        """Return the axes of the grid, as `layer ↓ head →`."""
        *down, right = self.choice.grid.axes or ("",)
        axis_arrows = ((".".join(down), "↓"), (right, "→"))
        return " ".join(f"{name} {arrow}" for name, arrow in axis_arrows if name)

    @property
    def wanted_width(self) -> int:
        """The width at which all heads of a layer fit."""
        return max(self._margin + 3 + CELL * self.choice.grid.num_columns, len(self._axes))

    def num_lines(self) -> int:
        """Return the number of lines: the layers and a line for the axes, or the ranked heads."""
        grid = self.choice.grid
        return grid.num_places if self.choice.ranking.is_on else grid.num_rows + 1

    @property
    def _margin(self) -> int:
        grid = self.choice.grid
        return max(len(grid.row_name(row)) for row in (0, grid.num_rows - 1))

    def _columns_seen(self) -> tuple[int, int]:
        """Return the range of heads that fit side by side, chosen to include the current head."""
        grid, room = self.choice.grid, max(1, (self.size.width - self._margin - 2) // CELL)
        column = self.choice.number % grid.num_columns
        first = column // room * room
        return first, min(first + room, grid.num_columns)

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw the heads of a layer, or one head with its number."""
        choice = self.choice
        if choice.ranking.is_on:
            return self._ranked(choice.ranking.heads(choice.grid)[number], width)
        grid = choice.grid
        if number == grid.num_rows:
            return [Segment(fitted(self._axes, width), DIM)]
        first, last = self._columns_seen()
        start = number * grid.num_columns + first
        values = grid.statistics.get(choice.ranking.statistic or "", np.full(grid.num_places, np.nan))
        shaded = shading(values.reshape(1, -1))
        tones, row = self.tones(shaded), shaded.places[0, start : start + last - first]
        pieces = [Segment(f"{grid.row_name(number):>{self._margin}} ", DIM)]
        chosen = choice.number - start
        if not grid.letters and not 0 <= chosen < len(row):
            return pieces + tones.cells(row, CELL)
        if not grid.letters:
            before, middle, after = row[:chosen], float(row[chosen]), row[chosen + 1 :]
            mark = tones.marked("[]", middle, is_chosen=True)
            return [*pieces, *tones.cells(before, CELL), mark, *tones.cells(after, CELL)]
        for place, shade in enumerate(row.tolist()):
            lead = {chosen: "[", chosen + 1: "]"}.get(place, " ") if chosen >= 0 else " "
            text = f"{lead}{self._letter(start + place)}"
            pieces.append(tones.marked(text, shade, is_chosen=place == chosen))
        return [*pieces, Segment("]")] if chosen == len(row) - 1 else pieces

    def _letter(self, number: int) -> str:
        grid = self.choice.grid
        is_removed = grid.head_name(number) in self.choice.removed
        return REMOVED if is_removed else grid.letters.get(grid.place(number), " ")

    def _ranked(self, number: int, width: int) -> list[Segment]:
        grid = self.choice.grid
        values = grid.statistics[self.choice.ranking.statistic or ""]
        value = fitted(scalar(float(values.ravel()[number]), PRECISION), LARGEST_NUMBER).strip()
        letter = f" {self._letter(number)}" if grid.letters else ""
        name = fitted(grid.head_name(number) + letter, max(width - LARGEST_NUMBER - 1, 0))
        style = CHOSEN if number == self.choice.number else None
        return [Segment(f"{name} {value:>{LARGEST_NUMBER}}", style)]

    def line_to_show(self) -> int:
        """Return the line that shows the chosen head."""
        choice = self.choice
        if choice.ranking.is_on:
            return choice.ranking.heads(choice.grid).index(choice.number)
        return choice.number // choice.grid.num_columns

    def clicked(self, line: int, x: int) -> bool:
        """Choose the head under the mouse."""
        choice, grid = self.choice, self.choice.grid
        if choice.ranking.is_on:
            choice.choose_head(choice.ranking.heads(choice.grid)[line])
            return True
        if line == grid.num_rows:
            return False
        first, last = self._columns_seen()
        column = first + (x - self._margin - 1) // CELL
        if not first <= column < last:
            return False
        choice.choose_head(line * grid.num_columns + column)
        return True


class StatisticsPanel(Panel):
    """The statistics of the chosen head, followed by those of the chosen row or key.

    A click on a statistic of the head ranks the heads by this statistic.
    """

    def heading(self) -> str:
        """Return the name of the chosen head."""
        choice = self.choice
        return f"head {choice.head}" if choice.grid.axes == PLACES else choice.head or "this map"

    def _lines(self) -> list[tuple[str, float | None]]:
        choice = self.choice
        head_lines = [(name, float(values[choice.place])) for name, values in choice.grid.statistics.items()]
        row_statistics = choice.token_statistics
        if not row_statistics:
            return [*head_lines]
        kind = "key" if choice.is_received else "row"
        return [
            *head_lines,
            (f"{kind} {choice.token_labels[choice.token].strip()}", None),
            *row_statistics.items(),
        ]

    def num_lines(self) -> int:
        """Return the number of lines: the head's statistics, and those of the row or key with its title."""
        return len(self._lines())

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw the name of a statistic and its number."""
        name, value = self._lines()[number]
        if value is None:
            return [Segment(fitted(name, width), BOLD)]
        number_text = scalar(value, PRECISION)
        room = max(width - len(number_text) - 1, 0)
        is_chosen = number < len(self.choice.grid.statistics) and name == self.choice.ranking.statistic
        style = BOLD if is_chosen else None
        return [Segment(fitted(plain_text(name), room), style or DIM), Segment(f" {number_text}", style)]

    def clicked(self, line: int, x: int) -> bool:
        """Rank the heads by the statistic under the mouse."""
        names = list(self.choice.grid.statistics)
        if line >= len(names):
            return False
        self.choice.ranking.statistic = names[line]
        return True


class PatternsPanel(Panel):
    """The pattern letters, the number of heads with each pattern, and the strongest of these heads.

    A click chooses the strongest head.
    """

    def heading(self) -> str:
        """Return the column titles."""
        return f"{'pattern':<20}heads  strongest (layer:head)"

    def _rows(self) -> list[tuple[HeadsOfPattern, Records[StrongestHead]]]:
        grid, survey = self.choice.grid, self.choice.grid.report.result
        if not isinstance(survey, HeadSurvey) or not grid.letters:
            return []
        stacks = {row.get("stack", "self") for row in grid.heads.values()}
        return [
            (row, survey.strongest_of(row.stack, row.pattern))
            for row in survey.patterns
            if row.stack in stacks
        ]

    def num_lines(self) -> int:
        """Return the number of patterns, one per line."""
        return len(self._rows())

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw the letter, the pattern, its number of heads, and the strongest heads."""
        row, strongest = self._rows()[number]
        name = f"{pattern_letter(row.pattern)} {plain_text(row.pattern)}"
        heads = (f"{head_name(head)} {fixed(head.value, 2)}" for head in strongest)
        count = fixed(row.heads, 0)
        return [Segment(fitted(f"{name:<20}{count:>5}  {'  '.join(heads)}", width))]

    def clicked(self, line: int, x: int) -> bool:
        """Choose the strongest head of the pattern under the mouse."""
        _, strongest = self._rows()[line]
        places = {place: number for number, place in enumerate(np.ndindex(self.choice.grid.shape))}
        if not strongest:
            return False
        self.choice.choose_head(places[strongest[0].layer, strongest[0].head])
        return True


NUMBER_WIDTH, SWATCH = 10, 2
LONGEST_TOKEN, SHORTEST_LABEL = 24, 8


class TokenBars(Panel):
    """One line per token, with its label, its number, and a bar relative to the largest number."""

    def heading(self) -> str:
        """Return the chosen token, and the order of the bars."""
        choice = self.choice
        token = choice.token_labels[choice.token].strip()
        question = f"who looks at {token}" if choice.is_received else f"where {token} looks"
        return question + (", largest first" if choice.by_weight else "")

    def num_lines(self) -> int:
        """Return the number of tokens on the other axis, one per line."""
        return len(self.choice.numbers)

    def show(self) -> None:
        """Compute the order and the longest bar once rather than line by line."""
        choice = self.choice
        self._order = choice.order
        sizes = np.where(np.isnan(choice.places), 0, np.nan_to_num(np.abs(choice.numbers.astype(np.float64))))
        most = float(sizes.max(initial=0))
        self._shares = sizes / most if most > 0 else sizes
        super().show()

    def line(self, number: int, width: int) -> list[Segment]:
        """Draw a label, a number and a bar. A number that rounds to zero has no bar."""
        choice, token = self.choice, self._order[number]
        label_width = min(max(SHORTEST_LABEL, width // 3), LONGEST_TOKEN)
        number_text = fixed(float(choice.numbers[token]), PRECISION)
        is_chosen = choice.has_one_text and token == choice.token
        pieces = [
            Segment(fitted(choice.bar_labels[token], label_width), CHOSEN if is_chosen else None),
            Segment(f"{number_text:>{NUMBER_WIDTH}} ", None if self._shares[token] > 0 else DIM),
        ]
        # The bar has the text colour, readable on any background; a swatch of the map colour precedes it.
        pieces += self.tones(choice.shading).cells(choice.places[token : token + 1], SWATCH)
        room = max(width - label_width - NUMBER_WIDTH - SWATCH - 2, 0)
        share = 0.0 if number_text.strip("-0.") == "" else float(self._shares[token])
        return [*pieces, Segment(" " + bar(share, room))]

    def line_to_show(self) -> int:
        """Return the line that shows the largest number."""
        if self.choice.by_weight:
            return 0
        return int(np.argmax(self._shares)) if len(self._shares) else 0

    def clicked(self, line: int, x: int) -> bool:
        """Choose the token under the mouse."""
        self.choice.follow(self._order[line])
        return True
