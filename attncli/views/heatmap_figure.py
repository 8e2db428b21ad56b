"""A matrix, or all the matrices of a tensor, as one picture with labels and a legend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.report import Report
from attncli.views import Display
from attncli.views.axis_labels import Side, column_header, label_width, row_labels, wide_enough
from attncli.views.blocks import BOLD, Line, beside, text_line, wrapped
from attncli.views.colormaps import shading
from attncli.views.half_blocks import cell_lines, character_lines, half_block_lines
from attncli.views.heatmap_plan import MAX_SINGLE, Plan, plan_of_atlas, plan_of_one, plan_of_several, screen
from attncli.views.heatmap_sides import numbers_of, sides_of
from attncli.views.legend import legend
from attncli.views.matrices import Matrix
from attncli.views.palettes import levels, palette
from attncli.views.pooling import pooled
from attncli.views.token_index import Mentioned, mentioned

GAP = 2
ROW_LABEL_WIDTH = 20
COLUMN_LABEL_WIDTH = 9
# Maps that were pooled before are pooled on as they were.
ONLY = {"pooled_mean": ("mean",), "pooled_max": ("largest",)}
POOLS = ("mean", "largest")


@dataclass(frozen=True)
class Figure:
    """A title, a legend and a picture for each way of pooling; and the tokens that are not shown whole."""

    lines: list[Line]
    mentioned: Mentioned


@dataclass(frozen=True)
class Subject:
    """What is drawn: matrices of one tensor, the sides they share, and the keys that are left out."""

    matrices: Sequence[Matrix]
    rows: Side
    columns: Side
    skipped: int

    @property
    def name(self) -> str:
        """The tensor's name and axes."""
        first = self.matrices[0]
        if len(self.matrices) == 1:
            return first.title
        axes = (*(axis for axis, _ in first.place), *first.axes)
        return f"{first.name} ({' × '.join(axes)})"

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of an atlas, where the matrices differ on two axes or more."""
        across = len({matrix.index[-1:] for matrix in self.matrices})
        down = len(self.matrices) // across
        return (down, across) if min(down, across) > 1 else None


def draw(report: Report, matrices: Sequence[Matrix], display: Display) -> Figure:
    """The picture of one tensor's matrices, in the width of the display."""
    rows, columns = sides_of(report, matrices[0])
    skipped = min(-(-display.skip_sink // columns.step), columns.count) if "key" in columns.name else 0
    subject = Subject(matrices, rows, columns, skipped)
    most = _label_room(rows, columns, display.width)
    plan = _plan(subject, display, most)
    numbers = np.stack([numbers_of(matrix, skipped) for matrix in matrices])
    pictures: list[list[Line]] = []
    for pool in ONLY.get(matrices[0].name, POOLS) if plan.is_pooled else ("",):
        if pool:
            both = pooled(numbers, plan.block)
            shown = both.mean if pool == "mean" else both.maximum
        else:
            shown = numbers
        pictures.append(_picture(subject, plan, shown, display, most, pool))
    return Figure(
        _arranged(pictures, display.width),
        mentioned(rows, columns, plan, most, in_grid=subject.grid is not None),
    )


def _arranged(pictures: list[list[Line]], width: int | None) -> list[Line]:
    """Two pictures beside each other where both fit, else one below the other."""
    if len(pictures) == 1:
        return pictures[0]
    both = beside(pictures, 2 * GAP)
    if width is not None and max(line.cells for line in both) <= width:
        return both
    return [*pictures[0], text_line(""), *pictures[1]]


def _label_room(rows: Side, columns: Side, width: int | None) -> int | None:
    """Cells for the token of a row: fewer where that lets every column have a cell of its own."""
    if width is None:
        return None
    usual = max(6, min(ROW_LABEL_WIDTH, width // 4))
    left = width - columns.count - rows.digits - 2
    return left if 6 <= left < usual else usual


def _plan(subject: Subject, display: Display, most: int | None) -> Plan:
    rows, columns = subject.rows, subject.columns
    size, count = (rows.count, columns.count), len(subject.matrices)
    if subject.grid is not None:
        room = screen(display.width, _place_width(subject) + 1, has_color=display.has_color)
        return plan_of_atlas(*size, subject.grid, room)
    in_pairs = display.has_color and rows.count > MAX_SINGLE
    room = screen(display.width, label_width(rows, most, in_pairs=in_pairs) + 1, has_color=display.has_color)
    if count > 1:
        return plan_of_several(*size, count, room, GAP)
    wide = wide_enough(columns, COLUMN_LABEL_WIDTH) if columns.step == 1 else 2
    return plan_of_one(*size, room, wide)


def _picture(
    subject: Subject, plan: Plan, numbers: np.ndarray, display: Display, most: int | None, pool: str
) -> list[Line]:
    """Title, legend and maps of one pooling."""
    found = shading(numbers, display.scale_colors)
    title = wrapped(subject.name + _pooling(subject, plan, pool), display.width, BOLD, display.has_color)
    maps = [_cells(places, plan, display, is_diverging=found.is_diverging) for places in found.places]
    keys = legend(found, display, num_maps=len(maps), skipped=subject.skipped * subject.columns.step)
    if subject.grid is not None:
        drawn = _atlas(subject, plan, maps)
    elif len(maps) > 1:
        drawn = _several(subject, plan, maps, display, most)
    else:
        drawn = _one(subject, plan, maps[0], display, most)
    return [*title, *keys, *drawn]


def _pooling(subject: Subject, plan: Plan, pool: str) -> str:
    """What a cell stands for, where that is more than one number of the tensor or of the text."""
    steps = subject.rows.step, subject.columns.step
    name = subject.matrices[0].name
    down, along = (block * step for block, step in zip(plan.block, steps, strict=True))
    if (down, along) == (1, 1):
        return ""
    nouns = "weights" if max(steps) > 1 else name if name in ("weights", "scores") else "numbers"
    (kind,) = ONLY.get(name, (pool,))
    return f": each cell the {kind} of {down} × {along} {nouns}"


def _cells(places: np.ndarray, plan: Plan, display: Display, *, is_diverging: bool) -> list[Line]:
    width = places.shape[1] * plan.cell_width
    if not display.has_color:
        texts = character_lines(places, plan.cell_width)
    elif plan.rows_per_line == 2:
        texts = half_block_lines(levels(places), palette(display.colors, is_diverging))
    else:
        texts = cell_lines(levels(places), palette(display.colors, is_diverging), plan.cell_width)
    return [Line(text, width) for text in texts]


def _labelled(side: Side, plan: Plan, most: int | None, header: int) -> list[Line]:
    """The labels of the rows, below the axis's name and beside the lines of the column header."""
    texts = row_labels(side, plan.block[0], plan.rows_per_line, most)
    above = [""] * (header - 1) + [side.name]
    return [text_line(text) for text in (*above, *texts)]


def _one(subject: Subject, plan: Plan, cells: list[Line], display: Display, most: int | None) -> list[Line]:
    header = column_header(subject.columns, plan.block[1], plan.cell_width)
    labels = _labelled(subject.rows, plan, most, len(header))
    return beside([labels, [*header, *cells]], 1)


def _several(
    subject: Subject, plan: Plan, maps: list[list[Line]], display: Display, most: int | None
) -> list[Line]:
    """Maps with titles, `across` of them beside the labels of their rows."""
    header = column_header(replace(subject.columns, tokens=()), plan.block[1], plan.cell_width)
    labels = _labelled(subject.rows, plan, most, len(header))
    lines: list[Line] = []
    for start in range(0, len(maps), plan.across):
        panels = []
        for matrix, cells in zip(
            subject.matrices[start : start + plan.across], maps[start : start + plan.across], strict=True
        ):
            axis, number = next((place for place in reversed(matrix.place) if place[1]), matrix.place[-1])
            panels.append([text_line(f"{axis} {number}"), *header, *cells])
        lines += beside([beside([[text_line(""), *labels], panels[0]], 1), *panels[1:]], GAP)
    return lines


def _row_place(matrix: Matrix) -> str:
    return ", ".join(f"{axis} {number}" for axis, number in matrix.place[:-1])


def _place_width(subject: Subject) -> int:
    return max(len(_row_place(matrix)) for matrix in subject.matrices)


def _atlas(subject: Subject, plan: Plan, maps: list[list[Line]]) -> list[Line]:
    """Thumbnails: a row for each layer, a column for each head; more heads than fit go on below."""
    assert subject.grid is not None
    down, across = subject.grid
    width, cells = _place_width(subject), maps[0][0].cells
    num_rows = -(-subject.rows.count // plan.block[0])
    lines: list[Line] = []
    for first in range(0, across, plan.across):
        heads = range(first, min(first + plan.across, across))
        lines += [text_line("")] if first else []
        lines += beside([[Line("", width)], *([title] for title in _head_titles(subject, heads, cells))], 1)
        for layer in range(down):
            place = _row_place(subject.matrices[layer * across])
            # An odd row of half-blocks leaves half a line blank.
            is_apart = plan.rows_per_line == 2 and num_rows % 2
            lines += [text_line("")] if layer and not is_apart else []
            row = [maps[layer * across + head] for head in heads]
            lines += beside([[text_line(place.ljust(width))], *row], 1)
    return lines


def _head_titles(subject: Subject, heads: range, cells: int) -> list[Line]:
    """`head 3`, or `3` above narrow thumbnails."""
    names = [subject.matrices[head].place[-1] for head in heads]
    titles = [f"{axis} {number}" for axis, number in names]
    if max(map(len, titles)) > cells:
        titles = [str(number) for _, number in names]
    return [text_line(title.ljust(cells)) for title in titles]
