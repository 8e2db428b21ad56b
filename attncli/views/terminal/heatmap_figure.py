"""A matrix, or all the matrices of a tensor, as one picture with labels and a legend."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attncli.report import Report
from attncli.views import Display
from attncli.views.colormaps import shading
from attncli.views.matrices import Matrix, scale_of
from attncli.views.pooling import pooled
from attncli.views.sides import Side
from attncli.views.terminal.axis_labels import label_width, span_width, wide_enough
from attncli.views.terminal.blocks import BOLD, ScreenLine, beside, text_line, wrapped
from attncli.views.terminal.half_blocks import cell_lines, character_lines, half_block_lines
from attncli.views.terminal.heatmap_layout import GAP, atlas, one, place_width, several
from attncli.views.terminal.heatmap_plan import (
    MAX_SINGLE,
    MAX_WIDE,
    Plan,
    plan_of_atlas,
    plan_of_one,
    plan_of_several,
    screen,
)
from attncli.views.terminal.heatmap_subject import Subject, numbers_of, subject_of
from attncli.views.terminal.legend import legend
from attncli.views.terminal.palettes import levels, palette
from attncli.views.terminal.token_index import Mentioned, mentioned

LEAST_WIDTH = 72  # Columns of a screen that shows two pictures beside each other.
LEAST_HALF = 56  # Columns that a pooled map keeps at least beside the other one.
ROW_LABEL_WIDTH = 20
COLUMN_LABEL_WIDTH = 9
# Maps that were pooled before are pooled on as they were.
ONLY = {"pooled_mean": ("mean",), "pooled_max": ("largest",)}
POOLS = ("mean", "largest")


@dataclass(frozen=True)
class Figure:
    """A title, a legend and a picture for each way of pooling; and the tokens that are not shown whole."""

    lines: list[ScreenLine]
    mentioned: Mentioned


def draw(
    report: Report, matrices: Sequence[Matrix], display: Display, compared: Sequence[Matrix] = ()
) -> Figure:
    """The picture of one tensor's matrices, in the width of the display; `compared` share their colours."""
    subject = subject_of(report, matrices, display.skip_sink, compared)
    most = _label_room(subject.rows, subject.columns, display.width)
    plan = _plan(subject, display, most)
    plan, part = _halved(subject, plan, display, most)
    pictures = [
        _picture(subject, plan, numbers, part, most, pool)
        for pool, numbers in _numbers(subject, subject.matrices, plan).items()
    ]
    found = mentioned(subject.rows, subject.columns, plan, most, in_grid=subject.grid is not None)
    return Figure(_arranged(pictures, display.width), found)


def _numbers(subject: Subject, matrices: Sequence[Matrix], plan: Plan) -> dict[str, np.ndarray]:
    """The numbers of the cells, of shape (map, row, column), by the way of pooling, "" for none."""
    each = (numbers_of(matrix, subject.skipped) for matrix in matrices)
    if not plan.is_pooled:
        return {"": np.stack(list(each))}
    both = [pooled(numbers, plan.block) for numbers in each]
    found = {"mean": [pool.mean for pool in both], "largest": [pool.maximum for pool in both]}
    return {pool: np.stack(found[pool]) for pool in _pools(subject)}


def _pools(subject: Subject) -> tuple[str, ...]:
    return ONLY.get(subject.matrices[0].name, POOLS)


def _arranged(pictures: list[list[ScreenLine]], width: int | None) -> list[ScreenLine]:
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
    size = subject.rows.count, subject.columns.count
    if subject.grid is not None:
        room = screen(display, place_width(subject) + 1)
        return plan_of_atlas(*size, subject.grid, room)
    if len(subject.matrices) > 1:
        room = screen(display, _labels(subject, display, most))
        return plan_of_several(*size, len(subject.matrices), room, GAP)
    return _plan_of_one(subject, display, most)


def _labels(subject: Subject, display: Display, most: int | None) -> int:
    most_single = MAX_WIDE if len(subject.matrices) == 1 else MAX_SINGLE
    in_pairs = display.has_color and subject.rows.count > most_single
    return label_width(subject.rows, most, in_pairs=in_pairs) + 1


def _plan_of_one(subject: Subject, display: Display, most: int | None) -> Plan:
    rows, columns = subject.rows, subject.columns
    wide = wide_enough(columns, COLUMN_LABEL_WIDTH) if columns.step == 1 else 2
    # Pooled rows have positions alone for labels, which leaves more room.
    beside_words, beside_spans = (
        plan_of_one(rows.count, columns.count, screen(display, labels), wide)
        for labels in (_labels(subject, display, most), span_width(rows) + 1)
    )
    return beside_spans if beside_words.is_pooled and beside_spans.block[0] > 1 else beside_words


def _halved(subject: Subject, plan: Plan, display: Display, most: int | None) -> tuple[Plan, Display]:
    """A plan for both poolings of one map beside each other, where each keeps enough columns then."""
    is_pair = plan.is_pooled and len(subject.matrices) == 1 and len(_pools(subject)) == 2
    if not is_pair or display.width is None or display.width < LEAST_WIDTH:
        return plan, display
    half = replace(display, width=(display.width - 2 * GAP) // 2)
    halved = _plan_of_one(subject, half, most)
    is_wide = -(-subject.columns.count // halved.block[1]) >= min(LEAST_HALF, subject.columns.count)
    return (halved, half) if is_wide else (plan, display)


def _picture(
    subject: Subject, plan: Plan, numbers: np.ndarray, display: Display, most: int | None, pool: str
) -> list[ScreenLine]:
    """Title, legend and maps of one pooling."""
    first, compared = subject.matrices[0], subject.compared
    found = shading(
        numbers,
        scale_of(display.scale_colors, first.axes),
        from_zero=first.is_weights,
        compared=[_numbers(subject, compared, plan)[pool]] if compared else (),
    )
    title = wrapped(subject.name + _pooling(subject, plan, pool), display.width, BOLD, display.has_color)
    maps = [_cells(places, plan, display, is_diverging=found.is_diverging) for places in found.places]
    keys = legend(
        found,
        display,
        num_maps=len(maps),
        compared=[*dict.fromkeys(matrix.name for matrix in (first, *compared))] if compared else [],
        skipped=subject.skipped * subject.columns.step,
        in_halves=plan.rows_per_line == 2,
    )
    if subject.grid is not None:
        drawn = atlas(subject, plan, maps)
    elif len(maps) > 1:
        drawn = several(subject, plan, maps, most)
    else:
        drawn = one(subject, plan, maps[0], most)
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


def _cells(places: np.ndarray, plan: Plan, display: Display, *, is_diverging: bool) -> list[ScreenLine]:
    width = places.shape[1] * plan.cell_width
    if not display.has_color:
        texts = character_lines(places, plan.cell_width)
    elif plan.rows_per_line == 2:
        texts = half_block_lines(levels(places), palette(display.colors, is_diverging))
    else:
        texts = cell_lines(levels(places), palette(display.colors, is_diverging), plan.cell_width)
    return [ScreenLine(text, width) for text in texts]
