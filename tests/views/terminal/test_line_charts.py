"""The dots of a line chart are at its points."""

import numpy as np
import pytest

from attncli.records.kinds import read_result
from attncli.records.report import Report, Table
from attncli.views import Display
from attncli.views.matrices import Curve
from attncli.views.terminal import AxisRange, axis_range, chart, curve_lines, dotted_lines
from attncli.views.texts import ScreenLine

# The dots of braille as Unicode numbers them: dots 1 to 8, their column and row.
NUMBERED = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]


def dots(lines: list[str]) -> set[tuple[int, int]]:
    """Column and row, from the left and the bottom, of each dot."""
    height = 4 * len(lines)
    return {
        (2 * i + column, height - 1 - (4 * j + row))
        for j, line in enumerate(lines)
        for i, character in enumerate(line)
        for bit, (column, row) in enumerate(NUMBERED)
        if character != " " and (ord(character) - 0x2800) >> bit & 1
    }


@pytest.mark.parametrize("seed", range(3))
def test_every_point_has_a_dot_and_neighbours_are_joined(seed: int) -> None:
    generator = np.random.default_rng(seed)
    x, y = np.sort(generator.uniform(size=5)), generator.uniform(size=5)
    columns, rows = 13, 7
    found = dots(dotted_lines(x, y, columns, rows))
    assert {(round(a * 25), round(b * 27)) for a, b in zip(x, y, strict=True)} <= found
    reached = {min(found)}
    while True:
        near = {d for d in found for r in reached if max(abs(d[0] - r[0]), abs(d[1] - r[1])) <= 1}
        if near == reached:
            break
        reached = near
    assert reached == found


def test_a_straight_line_is_a_diagonal() -> None:
    ends = np.array([0.0, 1.0])
    assert dots(dotted_lines(ends, ends, 4, 2)) == {(i, i) for i in range(8)}


def test_the_axes_have_the_ends_as_numbers() -> None:
    curve = Curve("", np.array([-5.0, 4.9]), np.array([0.25, 0.75]))
    lines: list[ScreenLine] = chart(curve, AxisRange(0.0, 1.0), 20, 5, Display(precision=2))
    texts = [line.text for line in lines]
    assert texts[0].startswith("1.00 ┤") and texts[2].startswith("0.50 ┤") and texts[4].startswith("0.00 ┤")
    assert texts[5] == "     └" + "─" * 20 and texts[6].split() == ["-5", "4.9"]


@pytest.mark.parametrize(("x", "y"), [([1.0], [2.0]), ([1.0, 2.0], [3.0, 3.0])])
def test_one_point_and_a_flat_line_are_drawn(x: list[float], y: list[float]) -> None:
    curve = Curve("", np.array(x), np.array(y))
    lines = chart(curve, axis_range(curve.y), 8, 3, Display(precision=1))
    assert any(ord(c) > 0x2800 for line in lines for c in line.text)


def test_charts_with_one_axis_have_room_below_0() -> None:
    """A loss may be negative."""
    rows = [
        {"policy": name, "budget": [0.3, 0.6], "loss": [low, 1.0]} for name, low in (("a", -2.0), ("b", 0.5))
    ]
    report = Report("cache", {}, {}, (), result=read_result("", {"lines": Table(rows)}))
    (lines,) = curve_lines(report, Display(precision=1))
    texts = [line.text for line in lines]
    assert texts[2].count(" 1.0 ┤") == texts[-3].count("-2.0 ┤") == 2
