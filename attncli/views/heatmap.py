"""Reports as pictures in a terminal: a heatmap for each matrix and a line chart for each curve."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TextIO

import numpy as np
from rich.cells import cell_len

from attncli.records.report import Report
from attncli.system.plain_text import plain_text
from attncli.views import Display
from attncli.views.colours import Shading, shading
from attncli.views.matrices import (
    Matrix,
    axes_in_words,
    block_maximum,
    block_mean,
    chosen_parts,
    colour_scale,
    compared_names,
    in_words,
    matrices,
    pictured,
    place_names,
)
from attncli.views.overlays import whole_lines
from attncli.views.picture_maps import maps_lines
from attncli.views.terminal import colour_bar, curve_lines, map_lines
from attncli.views.texts import (
    BOLD,
    DIM,
    NO_CELL,
    LabelledAxis,
    ScreenLine,
    beside,
    heading,
    joined,
    labelled_axes,
    plain_line,
    range_ends,
    sentences,
    styled,
    text_columns,
    wrapped,
)

MOST_VERTICAL = 8
TICK_CELLS = 10


def label_width(axis: LabelledAxis, most: int | None, *, in_pairs: bool) -> int:
    """Return the maximum width of labels for single rows, for blocks of rows, and for two rows per line."""
    labels = axis.labels(most) + (axis.labels(most, rows_per_line=2) if in_pairs else [])
    return max([block_label_width(axis), *map(cell_len, labels)])


def block_label_width(axis: LabelledAxis) -> int:
    """Return the maximum width of labels for blocks of rows."""
    return max(2 * axis.digits + 1, len(axis.name))


def wide_enough(axis: LabelledAxis, most: int | None) -> int:
    """Return the width of a column that fits its position and its token on one line each, and a space."""
    return max([axis.digits, *map(cell_len, axis.texts(most))]) + 1


def most_above(cell_width: int) -> int:
    """Return the longest token above columns of that width, in cells: vertical above two, else horizontal."""
    return MOST_VERTICAL if cell_width == 2 else cell_width - 1


def column_header(axis: LabelledAxis, block: int, cell_width: int) -> list[ScreenLine]:
    """Return positions and tokens above the columns: horizontal, vertical, or only every tenth position."""
    if block * axis.step > 1 or cell_width == 1:
        return [ticks(axis, block, cell_width)]
    positions = [str(axis.first + i) for i in range(axis.count)]
    lines: list[list[str]]
    if cell_width > 2:
        lines = [positions, axis.texts(most_above(cell_width))] if axis.tokens else [positions]
    else:
        lines = _downwards(positions)
        if axis.tokens:
            words = _downwards([_vertical(plain_text(token)) for token in axis.tokens])
            lines = [*words, [""] * axis.count, *lines]
    padded = ("".join(text + " " * (cell_width - cell_len(text)) for text in line) for line in lines)
    return [plain_line(line.rstrip()) for line in padded]


def _vertical(text: str) -> list[str]:
    """Return the characters one per line, with an ellipsis if there are too many."""
    characters = _whole_characters(text)
    return characters if len(characters) <= MOST_VERTICAL else [*characters[: MOST_VERTICAL - 1], "…"]


def _whole_characters(text: str) -> list[str]:
    """Return the visible characters, each with its combining marks or the parts of an emoji."""
    characters: list[str] = []
    for character in text:
        if characters and cell_len(characters[-1] + character) == cell_len(characters[-1]):
            characters[-1] += character
        else:
            characters.append(character)
    return characters


def _downwards(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return lines of characters that read downwards and end on the last line."""
    height = max(map(len, texts), default=0)
    columns = [[""] * (height - len(text)) + list(text) for text in texts]
    return [[column[line] for column in columns] for line in range(height)]


def ticks(axis: LabelledAxis, block: int, cell_width: int) -> ScreenLine:
    """Return a line with the position of every tenth cell, beginning above that cell, as far as it fits."""
    columns = -(-axis.count // block)
    line = ""
    for column in range(0, columns, TICK_CELLS // cell_width):
        number = str(column * block * axis.step)
        if column and column * cell_width + len(number) > columns * cell_width:
            break
        line += " " * (column * cell_width - len(line)) + number
    return plain_line(line)


GAP = 2  # The number of columns between two maps.
ROW_LABEL_WIDTH, COLUMN_LABEL_WIDTH = 20, 9
LEAST_LABEL = 6
MAX_WIDE = 24  # The largest number of rows and columns for which cells are as wide as the words above them.
MAX_SINGLE = 12  # The largest number of rows for which each has its own line even among several maps.
MAX_DOUBLE = 40  # The largest number of rows for which a cell is two characters wide and so roughly square.
NATURAL = 1024  # The number of rows and columns that are drawn one by one if there is no screen to fit.
MIN_PANEL = 24  # The minimum number of columns of cells that one of several maps keeps.
MIN_TITLED = 8  # The number of columns that the title of a map takes.
MIN_THUMBNAIL = 5
ATLAS_LINES = 48
VECTOR_LINES = 20  # The number of lines for one map of vectors, which is less informative than one of tokens.
LEAST_PAIR = 72  # The width of a screen that shows two pictures side by side.
LEAST_HALF = 56  # The minimum number of columns that a pooled map keeps beside the other map.
# Maps that are already pooled are pooled again in the same way.
POOLED_NAMES = {"pooled_mean": ("mean",), "pooled_max": ("largest",)}


@dataclass(frozen=True)
class Subject:
    """The matrices of one tensor to draw, their common axes, and the number of first keys to leave out.

    `compared` holds matrices of other tensors that share the colours. `row_token_cells` is the number of
    cells for the token in a row's label (None: as many as it needs).
    """

    matrices: Sequence[Matrix]
    compared: Sequence[Matrix]
    rows: LabelledAxis
    columns: LabelledAxis
    skipped: int
    row_token_cells: int | None

    @property
    def name(self) -> str:
        """The tensor's name and its axes."""
        first = self.matrices[0]
        if len(self.matrices) == 1:
            return first.title
        axes = (*(axis for axis, _ in first.place), *first.axes)
        return f"{in_words(first.name)} ({axes_in_words(axes)})"

    @property
    def poolings(self) -> tuple[str, ...]:
        """The ways to reduce several numbers to one cell, each with its own picture."""
        return POOLED_NAMES.get(self.matrices[0].name, ("mean", "largest"))

    @property
    def grid(self) -> tuple[int, int] | None:
        """The number of rows and columns of an atlas, if the matrices differ on two or more axes."""
        across = len({matrix.index[-1:] for matrix in self.matrices})
        down = len(self.matrices) // across
        return (down, across) if min(down, across) > 1 else None

    @property
    def row_names(self) -> list[str]:
        """The place of each row of an atlas on all leading axes but the last, like `layer 5`."""
        return [", ".join(place_names(matrix.shown_place[:-1])) for matrix in self.matrices]

    @property
    def panel_titles(self) -> list[str]:
        """The place of each matrix on the axes on which the matrices differ, like `head 3`."""
        places = zip(*(matrix.index for matrix in self.matrices), strict=True)
        varying = [i for i, numbers in enumerate(places) if len(set(numbers)) > 1]
        return [", ".join(place_names(matrix.shown_place[i] for i in varying)) for matrix in self.matrices]


def tensor_subject(
    report: Report, matrices: Sequence[Matrix], compared: Sequence[Matrix], display: Display
) -> Subject:
    """Return the matrices of one tensor without the first keys: if keys are pooled, without whole blocks."""
    rows, columns = labelled_axes(report, matrices[0])
    skipped = columns.skipped(display.skip_first_keys)
    row_token_cells = None
    if display.width is not None:
        row_token_cells = min(ROW_LABEL_WIDTH, display.width // 4)
        # Fewer cells, if that gives every column a cell of its own.
        left = display.width - columns.count - rows.digits - 2
        if left >= LEAST_LABEL:
            row_token_cells = min(row_token_cells, left)
    return Subject(matrices, compared, rows, columns, skipped, row_token_cells)


@dataclass(frozen=True)
class MapPlan:
    """`block` is the rows and columns of numbers per cell, and `across` the number of maps side by side."""

    block: tuple[int, int]
    cell_width: int
    rows_per_line: int
    across: int = 1

    @property
    def is_pooled(self) -> bool:
        """True if a cell represents several numbers."""
        return self.block != (1, 1)


@dataclass(frozen=True)
class CellRoom:
    """The space for cells: the columns beside the labels, the lines, and whether a line can show two rows."""

    columns: int
    lines: int
    has_halves: bool


def map_plan(subject: Subject, display: Display) -> tuple[MapPlan, Display]:
    """Return the plan, and the display for each picture: half the width if two poolings fit side by side."""
    if subject.grid is not None:
        room = _screen(display, max(map(len, subject.row_names)) + 1)
        return _atlas_plan(subject, subject.grid, room), display
    if len(subject.matrices) > 1:
        return _several_maps_plan(subject, _screen(display, _label_width(subject, display))), display
    plan = _plan_of_one(subject, display)
    is_pair = plan.is_pooled and len(subject.poolings) == 2
    if not is_pair or display.width is None or display.width < LEAST_PAIR:
        return plan, display
    half = replace(display, width=(display.width - 2 * GAP) // 2)
    halved = _plan_of_one(subject, half)
    num_columns = subject.columns.count
    is_wide = _ceil(num_columns, halved.block[1]) >= min(LEAST_HALF, num_columns)
    return (halved, half) if is_wide else (plan, display)


def _screen(display: Display, label_width: int) -> CellRoom:
    """Return the space that a terminal of that width leaves beside the labels, within the lines of a map."""
    if display.width is None:
        return CellRoom(NATURAL, NATURAL, display.has_color)
    return CellRoom(max(display.width - label_width, MIN_THUMBNAIL), display.map_lines, display.has_color)


def _label_width(subject: Subject, display: Display) -> int:
    most_single = MAX_WIDE if len(subject.matrices) == 1 else MAX_SINGLE
    in_pairs = display.has_color and subject.rows.count > most_single
    return label_width(subject.rows, subject.row_token_cells, in_pairs=in_pairs) + 1


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _plan_of_one(subject: Subject, display: Display) -> MapPlan:
    # Labels of pooled rows are only positions, which leaves more space.
    with_tokens, with_positions = (
        _plan_beside(subject, _screen(display, labels))
        for labels in (_label_width(subject, display), block_label_width(subject.rows) + 1)
    )
    return with_positions if with_tokens.is_pooled and with_positions.block[0] > 1 else with_tokens


def _plan_beside(subject: Subject, room: CellRoom) -> MapPlan:
    """Plan one map: wide cells for few numbers, then cells of two characters or one, half-blocks, pooling."""
    rows, columns = subject.rows.count, subject.columns.count
    wide = wide_enough(subject.columns, COLUMN_LABEL_WIDTH) if subject.columns.step == 1 else 2
    if max(rows, columns) <= min(MAX_WIDE, room.lines) and wide > 2 and columns * wide <= room.columns:
        return MapPlan((1, 1), wide, 1)
    if rows <= min(MAX_DOUBLE, room.lines) and columns * 2 <= room.columns:
        return MapPlan((1, 1), 2, 1)
    return _dense_plan(rows, columns, room)


def _dense_plan(rows: int, columns: int, room: CellRoom) -> MapPlan:
    """Plan one character per cell and one line per row; if these do not fit, half-blocks, then pooling."""
    if columns <= room.columns and rows <= min(MAX_WIDE, room.lines):
        return MapPlan((1, 1), 1, 1)
    rows_per_line = 2 if room.has_halves else 1
    is_square = rows == columns
    lines = room.lines if is_square else min(room.lines, VECTOR_LINES)
    most_rows = lines * rows_per_line
    most_whole = (64 if is_square else 32 * rows_per_line) if room.lines > MAX_WIDE else 0
    if columns <= room.columns and rows <= max(most_rows, most_whole):
        return MapPlan((1, 1), 1, rows_per_line)
    down, along = _ceil(rows, most_rows), _ceil(columns, room.columns)
    if is_square:  # Blocks look square, too: a character is twice as tall as it is wide.
        along = max(along, down if room.has_halves else _ceil(down, 2))
        down = along if room.has_halves else 2 * along
    return MapPlan((down, along), 1, 1 if _ceil(rows, down) <= min(MAX_WIDE, room.lines) else rows_per_line)


def _several_maps_plan(subject: Subject, room: CellRoom) -> MapPlan:
    """Plan lines of maps that fill the width: whole if two or more fit side by side, else pooled."""
    rows, columns, count = subject.rows.count, subject.columns.count, len(subject.matrices)
    for cell_width in (2, 1):
        fitting = (room.columns + GAP) // (max(columns * cell_width, MIN_TITLED) + GAP)
        rows_per_line = 2 if room.has_halves and cell_width == 1 and rows > MAX_SINGLE else 1
        lines = _ceil(rows, rows_per_line) + 2
        # Pooling such narrow maps would not make more maps fit.
        is_short = lines * _ceil(count, max(1, fitting)) <= room.lines or columns * cell_width <= MIN_PANEL
        if fitting >= min(2, count) and is_short and lines <= room.lines:
            return MapPlan((1, 1), cell_width, rows_per_line, _even(count, fitting))
    least = max(MIN_TITLED, min(columns, MIN_PANEL))
    across = _even(count, max(1, (room.columns + GAP) // (least + GAP)))
    panel = replace(room, columns=(room.columns + GAP) // across - GAP)
    return replace(_dense_plan(rows, columns, panel), across=across)


def _even(count: int, fitting: int) -> int:
    """Return the number of maps side by side that gives the fewest lines of maps, evenly filled."""
    return _ceil(count, _ceil(count, min(count, fitting)))


def _atlas_plan(subject: Subject, grid: tuple[int, int], room: CellRoom) -> MapPlan:
    """Plan the thumbnails of a grid of maps on one screen; rows that do not fit continue below."""
    rows, columns, (down, across) = subject.rows.count, subject.columns.count, grid
    lines = max(3, ATLAS_LINES // down - 1)
    across = min(across, max(1, (room.columns + 1) // (MIN_THUMBNAIL + 1)))
    width = (room.columns + 1) // across - 1
    if rows <= lines and columns * 2 <= width:
        return MapPlan((1, 1), 2, 1, across)
    rows_per_line = 2 if room.has_halves else 1
    block_rows, block_columns = _ceil(rows, lines * rows_per_line), _ceil(columns, width)
    if rows == columns and down * (_ceil(rows, block_columns) // rows_per_line + 1) <= ATLAS_LINES:
        block_rows = block_columns
    return MapPlan((block_rows, block_columns), 1, rows_per_line, across)


MapLines = list[ScreenLine]
TokenTexts = Mapping[tuple[str, int], str]
BLANK = plain_line("")


def arranged(subject: Subject, plan: MapPlan, maps: list[MapLines]) -> MapLines:
    """The maps with their labels and titles."""
    if subject.grid is not None:
        return _atlas(subject, plan, maps, *subject.grid)
    columns = subject.columns if len(maps) == 1 else replace(subject.columns, tokens=())
    header = column_header(columns, plan.block[1], plan.cell_width)
    row_labels = subject.rows.labels(subject.row_token_cells, plan.block[0], plan.rows_per_line)
    names = [""] * (len(header) - 1) + [in_words(subject.rows.name)]
    labels = [plain_line(text) for text in [*names, *row_labels]]
    if len(maps) == 1:
        return beside([labels, [*header, *maps[0]]], 1)
    titles = subject.panel_titles
    panels = [[plain_line(title), *header, *cells] for title, cells in zip(titles, maps, strict=True)]
    lines: MapLines = []
    for start in range(0, len(panels), plan.across):
        first, *others = panels[start : start + plan.across]
        lines += beside([beside([[BLANK, *labels], first], 1), *others], GAP)
    return lines


def _atlas(subject: Subject, plan: MapPlan, maps: list[MapLines], down: int, across: int) -> MapLines:
    """Draw thumbnails, one row per layer and one column per head; heads that do not fit continue below."""
    names, cells = subject.row_names, maps[0][0].cells
    width = max(map(len, names))
    # If the number of rows is odd, half-blocks leave half a line empty.
    is_apart = plan.rows_per_line == 2 and -(-subject.rows.count // plan.block[0]) % 2
    lines: MapLines = []
    for first in range(0, across, plan.across):
        heads = range(first, min(first + plan.across, across))
        lines += [BLANK] if first else []
        titles = _head_titles(subject, heads, cells)
        lines += beside([[ScreenLine("", width)], *([title] for title in titles)], 1)
        for start in range(0, down * across, across):
            lines += [BLANK] if start and not is_apart else []
            row = [maps[start + head] for head in heads]
            lines += beside([[plain_line(names[start].ljust(width))], *row], 1)
    return lines


def _head_titles(subject: Subject, heads: range, cells: int) -> MapLines:
    """Return titles like `head 3`, or just `3` above narrow thumbnails."""
    places = [subject.matrices[head].place[-1] for head in heads]
    titles = place_names(places)
    if max(map(len, titles)) > cells:
        titles = [str(number) for _, number in places]
    return [plain_line(title.ljust(cells)) for title in titles]


def incomplete_tokens(subject: Subject, plan: MapPlan) -> TokenTexts:
    """Return `token 12` and its text for each token that labels shorten or omit; none if cells are pooled."""
    if plan.is_pooled:
        return {}
    rows, columns = subject.rows, subject.columns
    row_places = rows.shortened_places(rows.token_room(subject.row_token_cells, plan.rows_per_line))
    if subject.grid is not None and rows.tokens:
        row_places = set(range(rows.count))
    has_header = plan.cell_width > 1 and plan.across == 1
    column_places = columns.shortened_places(most_above(plan.cell_width)) if has_header else set()
    if rows.tokens == columns.tokens:
        return _texts(rows, row_places | column_places)
    if columns.tokens and not has_header:
        column_places = set(range(columns.count))
    return {**_texts(rows, row_places), **_texts(columns, column_places)}


def _texts(axis: LabelledAxis, places: set[int]) -> TokenTexts:
    return {(axis.noun, place): plain_text(axis.tokens[place]) for place in sorted(places)}


POOLINGS = {"mean": block_mean, "largest": block_maximum}
BAR_CELLS = 20
SCALES = {"linear": "linear", "log": "log scale, 0 at the minimum", "row": "scaled per row"}


class Figure(NamedTuple):
    """A title, a legend and a picture for each pooling, and the tokens that are not shown in full."""

    lines: list[ScreenLine]
    mentioned: TokenTexts


def draw(
    report: Report, matrices: Sequence[Matrix], display: Display, compared: Sequence[Matrix] = ()
) -> Figure:
    """Draw one tensor's matrices in the width of the display; the `compared` tensors share their colours."""
    subject = tensor_subject(report, matrices, compared, display)
    plan, part = map_plan(subject, display)
    pictures = [
        _picture(subject, plan, part, pool) for pool in (subject.poolings if plan.is_pooled else [""])
    ]
    lines = beside(pictures, 2 * GAP)
    if len(pictures) > 1 and (display.width is None or max(line.cells for line in lines) > display.width):
        lines = [*pictures[0], plain_line(""), *pictures[1]]
    return Figure(lines, incomplete_tokens(subject, plan))


def _picture(subject: Subject, plan: MapPlan, display: Display, pool: str) -> list[ScreenLine]:
    """Return the title, legend and maps of one pooling; the maps are unpooled if `pool` is empty."""
    first = subject.matrices[0]
    numbers, *compared = (
        np.stack([_cells(matrix, subject.skipped, plan, pool) for matrix in each])
        for each in (subject.matrices, subject.compared)
        if each
    )
    shades = shading(
        numbers,
        colour_scale(display.scale_colors, first.axes),
        from_zero=first.is_weights,
        compared=compared,
    )
    title = subject.name + _pooling_note(subject, plan, pool)
    maps = [
        map_lines(
            places,
            display,
            is_diverging=shades.is_diverging,
            cell_width=plan.cell_width,
            rows_per_line=plan.rows_per_line,
        )
        for places in shades.places
    ]
    return [
        *wrapped(title, display.width, BOLD, display.has_color),
        *_legend(shades, subject, plan, display),
        *arranged(subject, plan, maps),
    ]


def _cells(matrix: Matrix, skipped: int, plan: MapPlan, pool: str) -> np.ndarray:
    """Return the cells' numbers in floating point, with NaN for missing numbers and for the first keys."""
    values = matrix.drawn
    no_number = values < 0 if np.issubdtype(values.dtype, np.integer) else ~np.isfinite(values)
    numbers = np.where(no_number, np.nan, values).astype(np.float64)
    numbers[:, :skipped] = np.nan
    return POOLINGS[pool](numbers, plan.block) if pool else numbers


def _pooling_note(subject: Subject, plan: MapPlan, pool: str) -> str:
    """Return what a cell represents, if it represents more than one number or token."""
    steps = subject.rows.step, subject.columns.step
    name = subject.matrices[0].name
    down, along = (block * step for block, step in zip(plan.block, steps, strict=True))
    if (down, along) == (1, 1):
        return ""
    nouns = "weights" if max(steps) > 1 else name if name in ("weights", "scores") else "numbers"
    (kind,) = POOLED_NAMES.get(name, (pool,))
    return f": {kind} of {down} × {along} {nouns} per cell"


def _legend(shades: Shading, subject: Subject, plan: MapPlan, display: Display) -> list[ScreenLine]:
    """Return `0.0000 [bar] 1.0000 linear; one range for all 8 maps`, on as many lines as the width needs."""
    if np.isnan(shades.low):
        return [styled("no numbers", DIM, display.has_color)]
    needs_amounts = display.scale_colors == "log" and shades.scale == "linear"
    remarks = ["linear (log needs numbers >= 0)" if needs_amounts else SCALES[shades.scale]]
    if len(subject.matrices) > 1 and shades.scale != "row":
        remarks.append(f"one range for all {len(subject.matrices)} maps")
    if subject.compared:
        names = dict.fromkeys(matrix.name for matrix in (subject.matrices[0], *subject.compared))
        remarks.append(f"one range for {' and '.join(names)}")
    if skipped := subject.skipped * subject.columns.step:
        remarks.append(f"without the first {skipped} keys" if skipped > 1 else "without the first key")
    if np.isnan(shades.places).any():
        remarks.append(f"{NO_CELL} hidden or missing")
    ends = range_ends(shades.low, shades.high, display.precision, shades.scale)
    rows = plan.rows_per_line
    lines = [colour_bar(ends, BAR_CELLS, display, is_diverging=shades.is_diverging, rows_per_line=rows)]
    separator = "  "
    for remark in remarks:
        addition = styled(separator + remark, DIM, display.has_color)
        if lines[-1].cells + addition.cells > display.columns:
            lines.append(styled(remark, DIM, display.has_color))
        else:
            lines[-1] = joined([lines[-1], addition])
        separator = "; "
    return lines


NOTHING = "This report has no matrix or curve to draw; use --format table to see the numbers."


def report_lines(report: Report, display: Display) -> Iterator[ScreenLine]:
    """Return the heading, pictures, shortened tokens and notes."""
    width = display.columns
    title = heading(report) if display.title is None else plain_text(display.title)
    has_title = bool(title.strip())
    if has_title:
        yield from wrapped(title, width, BOLD, display.has_color)
    drawn = pictured(report)
    if drawn and not display.show:  # looks at a picture are shown only on the picture
        report = replace(report, tensors={name: report.tensors[name] for name in drawn})
    by_name = {name: list(group) for name, group in groupby(matrices(report), key=lambda matrix: matrix.name)}
    pictures: list[list[ScreenLine]] = [
        [*wrapped(title, width, BOLD, display.has_color), *map(plain_line, lines)]
        for name in drawn
        for title, lines in whole_lines(report, name, display, has_list=False)
    ]
    if report.picture_maps is not None:
        by_name = {}
        pictures += [
            [*wrapped(title, width, BOLD, display.has_color), *map(plain_line, lines)]
            for title, lines in maps_lines(report.picture_maps, display)
        ]
    incomplete: TokenTexts = {}
    for name, group in by_name.items():
        if name in drawn:
            continue
        compared = [matrix for other in compared_names(report, name) for matrix in by_name[other]]
        figure = draw(report, group, display, compared)
        incomplete = {**incomplete, **figure.mentioned}
        pictures.append(figure.lines)
    pictures += curve_lines(report, display)
    for number, lines in enumerate(pictures or [[plain_line(NOTHING)]]):
        yield from ([BLANK] if number or has_title else [])
        yield from lines
    if incomplete:
        yield BLANK
        for line in text_columns(sentences(dict(sorted(incomplete.items()))), width):
            yield styled(line, DIM, display.has_color)
    yield BLANK
    for note in report.sentences:
        yield from wrapped(plain_text(note), width, DIM, display.has_color)


def write(reports: Iterable[Report], stream: TextIO, display: Display) -> None:
    """Write each report under its heading, with a blank line between reports."""
    for number, report in enumerate(reports):
        if number:
            stream.write("\n")
        for line in report_lines(chosen_parts(report, display.show or ("all",)), display.wide_enough()):
            stream.write(f"{line.text.rstrip(' ')}\n")
