"""A matrix, or all the matrices of a tensor, as one picture with labels and a legend."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attncli.report import Report
from attncli.views import TEXT_WIDTH, Display
from attncli.views.colormaps import Shading, shading
from attncli.views.matrices import Matrix, scale_of
from attncli.views.numbers import range_ends
from attncli.views.pooling import block_maximum, block_mean
from attncli.views.terminal.blocks import BOLD, DIM, ScreenLine, beside, joined, styled, text_line, wrapped
from attncli.views.terminal.half_blocks import NO_NUMBER, RAMP, cell_lines, character_lines, half_block_lines
from attncli.views.terminal.heatmap_layout import TokenTexts, arranged, incomplete_tokens
from attncli.views.terminal.heatmap_plan import GAP, POOLED_NAMES, Plan, Subject, plan_of, subject_of
from attncli.views.terminal.palettes import levels, palette

POOLINGS = {"mean": block_mean, "largest": block_maximum}
BAR_CELLS = 20
SCALES = {"linear": "linear", "log": "even in the logarithm, 0 as the least", "row": "each row by itself"}


class Figure(NamedTuple):
    """A title, a legend and a picture for each way of pooling; and the tokens that are not shown whole."""

    lines: list[ScreenLine]
    mentioned: TokenTexts


def draw(
    report: Report, matrices: Sequence[Matrix], display: Display, compared: Sequence[Matrix] = ()
) -> Figure:
    """The picture of one tensor's matrices, in the width of the display; `compared` share their colours."""
    subject = subject_of(report, matrices, compared, display)
    plan, part = plan_of(subject, display)
    pictures = [
        _picture(subject, plan, part, pool) for pool in (subject.poolings if plan.is_pooled else [""])
    ]
    lines = beside(pictures, 2 * GAP)
    if len(pictures) > 1 and (display.width is None or max(line.cells for line in lines) > display.width):
        lines = [*pictures[0], text_line(""), *pictures[1]]
    return Figure(lines, incomplete_tokens(subject, plan))


def _picture(subject: Subject, plan: Plan, display: Display, pool: str) -> list[ScreenLine]:
    """Title, legend and maps of one way of pooling; of none where `pool` is empty."""
    first = subject.matrices[0]
    numbers, *compared = (
        np.stack([_cells(matrix, subject.skipped, plan, pool) for matrix in each])
        for each in (subject.matrices, subject.compared)
        if each
    )
    found = shading(
        numbers,
        scale_of(display.scale_colors, first.axes),
        from_zero=first.is_weights,
        compared=compared,
    )
    title = subject.name + _pooling_note(subject, plan, pool)
    maps = [_map_lines(places, plan, display, found.is_diverging) for places in found.places]
    return [
        *wrapped(title, display.width, BOLD, display.has_color),
        *_legend(found, subject, plan, display),
        *arranged(subject, plan, maps),
    ]


def _cells(matrix: Matrix, skipped: int, plan: Plan, pool: str) -> np.ndarray:
    """The numbers of the cells in floating point, NaN for no number and for the first keys."""
    values = matrix.drawn
    no_number = values < 0 if np.issubdtype(values.dtype, np.integer) else ~np.isfinite(values)
    numbers = np.where(no_number, np.nan, values).astype(np.float64)
    numbers[:, :skipped] = np.nan
    return POOLINGS[pool](numbers, plan.block) if pool else numbers


def _pooling_note(subject: Subject, plan: Plan, pool: str) -> str:
    """What a cell stands for, where that is more than one number of the tensor or of the text."""
    steps = subject.rows.step, subject.columns.step
    name = subject.matrices[0].name
    down, along = (block * step for block, step in zip(plan.block, steps, strict=True))
    if (down, along) == (1, 1):
        return ""
    nouns = "weights" if max(steps) > 1 else name if name in ("weights", "scores") else "numbers"
    (kind,) = POOLED_NAMES.get(name, (pool,))
    return f": each cell the {kind} of {down} × {along} {nouns}"


def _map_lines(places: np.ndarray, plan: Plan, display: Display, is_diverging: bool) -> list[ScreenLine]:
    if not display.has_color:
        texts = character_lines(places, plan.cell_width)
    elif plan.rows_per_line == 2:
        texts = half_block_lines(levels(places), palette(display.colors, is_diverging))
    else:
        texts = cell_lines(levels(places), palette(display.colors, is_diverging), plan.cell_width)
    return [ScreenLine(text, places.shape[1] * plan.cell_width) for text in texts]


def _legend(found: Shading, subject: Subject, plan: Plan, display: Display) -> list[ScreenLine]:
    """`0.0000 [bar] 1.0000  linear; one range for all 8 maps`, in as many lines as the width needs."""
    if np.isnan(found.low):
        return [styled("no numbers", DIM, display.has_color)]
    needs_amounts = display.scale_colors == "log" and found.scale == "linear"
    remarks = ["linear (log needs amounts)" if needs_amounts else SCALES[found.scale]]
    if len(subject.matrices) > 1 and found.scale != "row":
        remarks.append(f"one range for all {len(subject.matrices)} maps")
    if subject.compared:
        names = dict.fromkeys(matrix.name for matrix in (subject.matrices[0], *subject.compared))
        remarks.append(f"one range for {' and '.join(names)}")
    if skipped := subject.skipped * subject.columns.step:
        remarks.append(f"without the first {skipped} keys" if skipped > 1 else "without the first key")
    if np.isnan(found.places).any():
        remarks.append(f"{NO_NUMBER} hidden or no number")
    low, high = range_ends(found.low, found.high, display.precision, found.scale)
    bar = _bar(found.is_diverging, plan, display)
    lines = [joined([text_line(f"{low} "), bar, text_line(f" {high}")])]
    separator = "  "
    for remark in remarks:
        addition = styled(separator + remark, DIM, display.has_color)
        if lines[-1].cells + addition.cells > (display.width or TEXT_WIDTH):
            lines.append(styled(remark, DIM, display.has_color))
        else:
            lines[-1] = joined([lines[-1], addition])
        separator = "; "
    return lines


def _bar(is_diverging: bool, plan: Plan, display: Display) -> ScreenLine:
    """The whole colour map from left to right, drawn as the cells are."""
    if not display.has_color:
        return text_line(f"[{RAMP}]")
    rows = plan.rows_per_line
    places = np.linspace(0, 1, BAR_CELLS)[np.newaxis].repeat(rows, axis=0)
    (line,) = _map_lines(places, Plan((1, 1), 1, rows), display, is_diverging)
    return line
