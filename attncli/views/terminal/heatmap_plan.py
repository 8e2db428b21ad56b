"""How large a cell is drawn, and how many numbers it stands for, so that a picture fits the screen."""

from dataclasses import dataclass

from attncli.views import Display

MAX_WIDE = 24  # Rows and columns up to which cells are as wide as the words above them.
MAX_SINGLE = 12  # Rows up to which each has a line of its own among several maps, too.
MAX_DOUBLE = 40  # Rows up to which a cell is two characters wide and so about square.
NATURAL = 1024  # Rows and columns that are drawn one by one where there is no screen to fit.
MIN_PANEL = 24  # Columns of cells that one of several maps keeps at least.
MIN_TITLED = 8  # Columns that the title of a map takes.
MIN_THUMBNAIL = 5
ATLAS_LINES = 48
VECTOR_LINES = 20  # Lines of one map of vectors, which say less than tokens by tokens.


@dataclass(frozen=True)
class Plan:
    """`block`: rows and columns of numbers a cell. `across`: maps side by side."""

    block: tuple[int, int]
    cell_width: int
    rows_per_line: int
    across: int = 1

    @property
    def is_pooled(self) -> bool:
        """Whether a cell stands for several numbers."""
        return self.block != (1, 1)


@dataclass(frozen=True)
class Screen:
    """The room for cells: columns beside the labels, lines, and whether half-blocks show two rows a line."""

    columns: int
    lines: int
    has_halves: bool


def screen(display: Display, label_width: int) -> Screen:
    """What a terminal of that width leaves beside labels, in as many lines as a map may take."""
    if display.width is None:
        return Screen(NATURAL, NATURAL, display.has_color)
    return Screen(max(display.width - label_width, MIN_THUMBNAIL), display.map_lines, display.has_color)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def plan_of_one(rows: int, columns: int, room: Screen, wide: int) -> Plan:
    """One map: wide cells for a few numbers, then two characters a cell, one, half-blocks; then pooled."""
    if max(rows, columns) <= min(MAX_WIDE, room.lines) and wide > 2 and columns * wide <= room.columns:
        return Plan((1, 1), wide, 1)
    if rows <= min(MAX_DOUBLE, room.lines) and columns * 2 <= room.columns:
        return Plan((1, 1), 2, 1)
    return _dense_plan(rows, columns, room)


def _dense_plan(rows: int, columns: int, room: Screen) -> Plan:
    """One character a cell, one line per row while they are few; pooled where they do not fit."""
    if columns <= room.columns and rows <= min(MAX_WIDE, room.lines):
        return Plan((1, 1), 1, 1)
    rows_per_line = 2 if room.has_halves else 1
    is_square = rows == columns
    lines = room.lines if is_square else min(room.lines, VECTOR_LINES)
    most_rows = lines * rows_per_line
    most_whole = (64 if is_square else 32 * rows_per_line) if room.lines > MAX_WIDE else 0
    if columns <= room.columns and rows <= max(most_rows, most_whole):
        return Plan((1, 1), 1, rows_per_line)
    down, along = _ceil(rows, most_rows), _ceil(columns, room.columns)
    if is_square:  # Blocks look square, too: a character is twice as tall as it is wide.
        along = max(along, down if room.has_halves else _ceil(down, 2))
        down = along if room.has_halves else 2 * along
    return Plan((down, along), 1, 1 if _ceil(rows, down) <= min(MAX_WIDE, room.lines) else rows_per_line)


def plan_of_several(rows: int, columns: int, count: int, room: Screen, gap: int) -> Plan:
    """Maps in lines that fill the width: whole where two or more fit beside each other, else pooled."""
    for cell_width in (2, 1):
        fitting = (room.columns + gap) // (max(columns * cell_width, MIN_TITLED) + gap)
        rows_per_line = 2 if room.has_halves and cell_width == 1 and rows > MAX_SINGLE else 1
        lines = _ceil(rows, rows_per_line) + 2
        # Maps as narrow as that would not become more by pooling.
        is_short = lines * _ceil(count, max(1, fitting)) <= room.lines or columns * cell_width <= MIN_PANEL
        if fitting >= min(2, count) and is_short and lines <= room.lines:
            return Plan((1, 1), cell_width, rows_per_line, _even(count, fitting))
    least = max(MIN_TITLED, min(columns, MIN_PANEL))
    fitting = max(1, (room.columns + gap) // (least + gap))
    across = _even(count, fitting)
    panel = Screen((room.columns + gap) // across - gap, room.lines, room.has_halves)
    plan = _dense_plan(rows, columns, panel)
    return Plan(plan.block, plan.cell_width, plan.rows_per_line, across)


def _even(count: int, fitting: int) -> int:
    """As many beside each other as make the fewest lines of maps, shared out evenly."""
    return _ceil(count, _ceil(count, min(count, fitting)))


def plan_of_atlas(rows: int, columns: int, grid: tuple[int, int], room: Screen) -> Plan:
    """Thumbnails of a grid of maps on one screen; more across than fit go on below."""
    down, across = grid
    lines = max(3, ATLAS_LINES // down - 1)
    across = min(across, max(1, (room.columns + 1) // (MIN_THUMBNAIL + 1)))
    width = (room.columns + 1) // across - 1
    if rows <= lines and columns * 2 <= width:
        return Plan((1, 1), 2, 1, across)
    rows_per_line = 2 if room.has_halves else 1
    block_rows, block_columns = _ceil(rows, lines * rows_per_line), _ceil(columns, width)
    if rows == columns and down * (_ceil(rows, block_columns) // rows_per_line + 1) <= ATLAS_LINES:
        block_rows = block_columns
    return Plan((block_rows, block_columns), 1, rows_per_line, across)
