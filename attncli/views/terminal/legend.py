"""What the colours or marks of a picture stand for: a bar from the lowest number to the highest."""

from collections.abc import Sequence

import numpy as np

from attncli.views import TEXT_WIDTH, Display
from attncli.views.colormaps import Shading
from attncli.views.numbers import range_ends
from attncli.views.terminal.blocks import DIM, ScreenLine, joined, styled, text_line
from attncli.views.terminal.half_blocks import NO_NUMBER, RAMP, cell_lines, character_lines, half_block_lines
from attncli.views.terminal.palettes import levels, palette

BAR_CELLS = 20
SCALES = {"linear": "linear", "log": "even in the logarithm, 0 as the least", "row": "each row by itself"}


def legend(
    shading: Shading,
    display: Display,
    *,
    num_maps: int,
    compared: Sequence[str],
    skipped: int,
    in_halves: bool,
) -> list[ScreenLine]:
    """`0.0000 [bar] 1.0000  linear; one range for all 8 maps`, in as many lines as the width needs."""
    if np.isnan(shading.low):
        return [styled(text_line("no numbers"), DIM, display.has_color)]
    low, high = map(text_line, range_ends(shading.low, shading.high, display.precision, shading.scale))
    bar = _bar(shading.is_diverging, display, in_halves=in_halves)
    needs_amounts = display.scale_colors == "log" and shading.scale == "linear"
    remarks = ["linear (log needs amounts)" if needs_amounts else SCALES[shading.scale]]
    if num_maps > 1 and shading.scale != "row":
        remarks.append(f"one range for all {num_maps} maps")
    if compared:
        remarks.append(f"one range for {' and '.join(compared)}")
    if skipped:
        remarks.append(f"without the first {skipped} keys" if skipped > 1 else "without the first key")
    if np.isnan(shading.places).any():
        remarks.append(f"{NO_NUMBER} hidden or no number")
    lines = [joined([low, text_line(" "), bar, text_line(" "), high])]
    for remark in remarks:
        said = text_line(f"{'  ' if len(lines) == 1 and remark is remarks[0] else '; '}{remark}")
        if lines[-1].cells + said.cells > (display.width or TEXT_WIDTH):
            lines.append(styled(text_line(remark), DIM, display.has_color))
        else:
            lines[-1] = joined([lines[-1], styled(said, DIM, display.has_color)])
    return lines


def _bar(is_diverging: bool, display: Display, *, in_halves: bool) -> ScreenLine:
    """The whole map from left to right, drawn as the cells are."""
    if not display.has_color:
        places = (np.arange(len(RAMP))[np.newaxis] + 0.5) / len(RAMP)
        return text_line(f"[{character_lines(places, 1)[0]}]")
    numbers = levels(np.linspace(0, 1, BAR_CELLS)[np.newaxis])
    colors = palette(display.colors, is_diverging)
    (line,) = (
        half_block_lines(numbers.repeat(2, axis=0), colors) if in_halves else cell_lines(numbers, colors, 1)
    )
    return ScreenLine(line, BAR_CELLS)
