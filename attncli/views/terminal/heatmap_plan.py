"""What a picture shows, the size of its cells, and how many numbers each stands for, to fit the screen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attncli.report import Report
from attncli.views import Display
from attncli.views.labels import LabelledAxis, labelled_axes
from attncli.views.matrices import KEY_AXES, Matrix, place_names
from attncli.views.terminal.axis_labels import block_label_width, label_width, wide_enough

GAP = 2  # Columns between two maps.
ROW_LABEL_WIDTH, COLUMN_LABEL_WIDTH = 20, 9
LEAST_LABEL = 6
MAX_WIDE = 24  # Rows and columns up to which cells are as wide as the words above them.
MAX_SINGLE = 12  # Rows up to which each has a line of its own among several maps, too.
MAX_DOUBLE = 40  # Rows up to which a cell is two characters wide and so about square.
NATURAL = 1024  # Rows and columns that are drawn one by one where there is no screen to fit.
MIN_PANEL = 24  # Columns of cells that one of several maps keeps at least.
MIN_TITLED = 8  # Columns that the title of a map takes.
MIN_THUMBNAIL = 5
ATLAS_LINES = 48
VECTOR_LINES = 20  # Lines of one map of vectors, which say less than tokens by tokens.
LEAST_WIDTH = 72  # Columns of a screen that shows two pictures beside each other.
LEAST_HALF = 56  # Columns that a pooled map keeps at least beside the other one.
# Maps that were pooled before are pooled again in the same way.
POOLED_NAMES = {"pooled_mean": ("mean",), "pooled_max": ("largest",)}


@dataclass(frozen=True)
class Subject:
    """What is drawn: matrices of one tensor, the axes they share, and how many first keys are left out.

    `compared`: matrices of other tensors, which share their colours with these. `row_token_cells`: cells for
    the token in the label of a row (None: as many as it needs).
    """

    matrices: Sequence[Matrix]
    compared: Sequence[Matrix]
    rows: LabelledAxis
    columns: LabelledAxis
    skipped: int
    row_token_cells: int | None

    @property
    def name(self) -> str:
        """The tensor's name and axes."""
        first = self.matrices[0]
        if len(self.matrices) == 1:
            return first.title
        axes = (*(axis for axis, _ in first.place), *first.axes)
        return f"{first.name} ({' × '.join(axes)})"

    @property
    def poolings(self) -> tuple[str, ...]:
        """The ways to reduce several numbers to one cell, one picture each."""
        return POOLED_NAMES.get(self.matrices[0].name, ("mean", "largest"))

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of an atlas, where the matrices differ on two axes or more."""
        across = len({matrix.index[-1:] for matrix in self.matrices})
        down = len(self.matrices) // across
        return (down, across) if min(down, across) > 1 else None

    @property
    def row_names(self) -> list[str]:
        """Of each matrix in an atlas its place on all leading axes but the last: `layer 5`."""
        return [", ".join(place_names(matrix.place[:-1])) for matrix in self.matrices]

    @property
    def panel_titles(self) -> list[str]:
        """Of each matrix its place on the axes on which they differ: `head 3`."""
        places = zip(*(matrix.index for matrix in self.matrices), strict=True)
        varying = [i for i, numbers in enumerate(places) if len(set(numbers)) > 1]
        return [", ".join(place_names(matrix.place[i] for i in varying)) for matrix in self.matrices]


def subject_of(
    report: Report, matrices: Sequence[Matrix], compared: Sequence[Matrix], display: Display
) -> Subject:
    """The matrices of one tensor; the first keys are left out, in whole blocks where keys are pooled."""
    rows, columns = labelled_axes(report, matrices[0])
    skipped = min(-(-display.skip_sink // columns.step), columns.count) if columns.name in KEY_AXES else 0
    row_token_cells = None
    if display.width is not None:
        row_token_cells = max(LEAST_LABEL, min(ROW_LABEL_WIDTH, display.width // 4))
        # Fewer cells, where that lets every column have a cell of its own.
        left = display.width - columns.count - rows.digits - 2
        if left >= LEAST_LABEL:
            row_token_cells = min(row_token_cells, left)
    return Subject(matrices, compared, rows, columns, skipped, row_token_cells)


@dataclass(frozen=True)
class Plan:
    """`block`: rows and columns of numbers per cell. `across`: maps side by side."""

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
    """The room for cells: columns beside the labels, lines, and whether a line can show two rows."""

    columns: int
    lines: int
    has_halves: bool


def plan_of(subject: Subject, display: Display) -> tuple[Plan, Display]:
    """The plan, and the display for each picture: of half the width where two poolings fit side by side."""
    if subject.grid is not None:
        room = _screen(display, max(map(len, subject.row_names)) + 1)
        return _plan_of_atlas(subject, subject.grid, room), display
    if len(subject.matrices) > 1:
        return _plan_of_several(subject, _screen(display, _label_width(subject, display))), display
    plan = _plan_of_one(subject, display)
    is_pair = plan.is_pooled and len(subject.poolings) == 2
    if not is_pair or display.width is None or display.width < LEAST_WIDTH:
        return plan, display
    half = replace(display, width=(display.width - 2 * GAP) // 2)
    halved = _plan_of_one(subject, half)
    num_columns = subject.columns.count
    is_wide = _ceil(num_columns, halved.block[1]) >= min(LEAST_HALF, num_columns)
    return (halved, half) if is_wide else (plan, display)


def _screen(display: Display, label_width: int) -> Screen:
    """What a terminal of that width leaves beside labels, in as many lines as a map may take."""
    if display.width is None:
        return Screen(NATURAL, NATURAL, display.has_color)
    return Screen(max(display.width - label_width, MIN_THUMBNAIL), display.map_lines, display.has_color)


def _label_width(subject: Subject, display: Display) -> int:
    most_single = MAX_WIDE if len(subject.matrices) == 1 else MAX_SINGLE
    in_pairs = display.has_color and subject.rows.count > most_single
    return label_width(subject.rows, subject.row_token_cells, in_pairs=in_pairs) + 1


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _plan_of_one(subject: Subject, display: Display) -> Plan:
    # Pooled rows have positions alone for labels, which leaves more room.
    with_tokens, with_positions = (
        _plan_beside(subject, _screen(display, labels))
        for labels in (_label_width(subject, display), block_label_width(subject.rows) + 1)
    )
    return with_positions if with_tokens.is_pooled and with_positions.block[0] > 1 else with_tokens


def _plan_beside(subject: Subject, room: Screen) -> Plan:
    """One map: wide cells for a few numbers, then two characters per cell, one, half-blocks; then pooled."""
    rows, columns = subject.rows.count, subject.columns.count
    wide = wide_enough(subject.columns, COLUMN_LABEL_WIDTH) if subject.columns.step == 1 else 2
    if max(rows, columns) <= min(MAX_WIDE, room.lines) and wide > 2 and columns * wide <= room.columns:
        return Plan((1, 1), wide, 1)
    if rows <= min(MAX_DOUBLE, room.lines) and columns * 2 <= room.columns:
        return Plan((1, 1), 2, 1)
    return _dense_plan(rows, columns, room)


def _dense_plan(rows: int, columns: int, room: Screen) -> Plan:
    """One character per cell, one line per row while they are few; pooled where they do not fit."""
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


def _plan_of_several(subject: Subject, room: Screen) -> Plan:
    """Maps in lines that fill the width: whole where two or more fit beside each other, else pooled."""
    rows, columns, count = subject.rows.count, subject.columns.count, len(subject.matrices)
    for cell_width in (2, 1):
        fitting = (room.columns + GAP) // (max(columns * cell_width, MIN_TITLED) + GAP)
        rows_per_line = 2 if room.has_halves and cell_width == 1 and rows > MAX_SINGLE else 1
        lines = _ceil(rows, rows_per_line) + 2
        # Maps as narrow as that would not become more by pooling.
        is_short = lines * _ceil(count, max(1, fitting)) <= room.lines or columns * cell_width <= MIN_PANEL
        if fitting >= min(2, count) and is_short and lines <= room.lines:
            return Plan((1, 1), cell_width, rows_per_line, _even(count, fitting))
    least = max(MIN_TITLED, min(columns, MIN_PANEL))
    across = _even(count, max(1, (room.columns + GAP) // (least + GAP)))
    panel = replace(room, columns=(room.columns + GAP) // across - GAP)
    return replace(_dense_plan(rows, columns, panel), across=across)


def _even(count: int, fitting: int) -> int:
    """As many beside each other as make the fewest lines of maps, shared out evenly."""
    return _ceil(count, _ceil(count, min(count, fitting)))


def _plan_of_atlas(subject: Subject, grid: tuple[int, int], room: Screen) -> Plan:
    """Thumbnails of a grid of maps on one screen; more across than fit continue below."""
    rows, columns, (down, across) = subject.rows.count, subject.columns.count, grid
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
