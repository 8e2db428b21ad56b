"""Drawn cells have the colours that matplotlib gives to the same numbers."""

from itertools import cycle

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from attncli.views.colours import levels, palette
from attncli.views.terminal import RAMP, cell_lines, character_lines, half_block_lines
from attncli.views.texts import NO_CELL
from tests.views.terminal.screens import Color, cells_of, halves

PLACES = arrays(
    np.float64,
    st.tuples(st.integers(1, 7), st.integers(1, 11)),
    elements=st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1.0, np.nan])),
)


def expected(places: np.ndarray, name: str) -> list[list[Color]]:
    colors = np.rint(matplotlib.colormaps[name](np.nan_to_num(places)) * 255).astype(int).tolist()
    return [
        [None if np.isnan(place) else tuple(color[:3]) for place, color in zip(*row, strict=True)]
        for row in zip(places.tolist(), colors, strict=True)
    ]


@given(PLACES, st.booleans())
def test_half_blocks_show_two_rows_per_line(places: np.ndarray, is_diverging: bool) -> None:
    lines = half_block_lines(levels(places), palette("truecolor", is_diverging))
    rows = [row for line in lines for row in halves(line)]
    wanted = expected(places, "coolwarm" if is_diverging else "viridis")
    assert rows == wanted + [[None] * places.shape[1]] * (len(places) % 2)


@given(PLACES, st.sampled_from([1, 2, 7]))
def test_cells_have_the_requested_width(places: np.ndarray, cell_width: int) -> None:
    lines = cell_lines(levels(places), palette("truecolor", False), cell_width)
    wanted = expected(places, "viridis")
    for line, row in zip(lines, wanted, strict=True):
        assert [cell.paper for cell in cells_of(line)] == [color for color in row for _ in range(cell_width)]
        for cell, is_first in zip(cells_of(line), cycle([True] + [False] * (cell_width - 1)), strict=False):
            assert cell.character == (NO_CELL if cell.paper is None and is_first else " ")


@given(PLACES)
def test_without_colour_larger_numbers_have_darker_marks(places: np.ndarray) -> None:
    for line, row in zip(character_lines(places, 1), places, strict=True):
        assert len(line) == len(row)
        for mark, place in zip(line, row, strict=True):
            if np.isnan(place):
                assert mark == NO_CELL
            else:
                low = RAMP.index(mark) / 10
                assert low <= place < low + 0.1 or (place == 1 and mark == "@")


def test_a_space_separates_wide_marks() -> None:
    assert character_lines(np.array([[1.0, 0.55]]), 4) == ["@@@ +++ "]
    assert character_lines(np.array([[1.0, 0.55]]), 2) == ["@@++"]


@pytest.mark.parametrize("colors", ["truecolor", "256", "16"])
def test_a_colour_is_written_only_when_it_changes(colors: str) -> None:
    flat = levels(np.full((2, 50), 0.3))
    assert half_block_lines(flat, palette(colors, False))[0].count("\x1b") == 3
    assert cell_lines(flat, palette(colors, False), 2)[0].count("\x1b") == 2
