"""Palettes of 16 and 256 colours keep the order of the map and come as close to it as possible."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy.spatial import KDTree

from attncli.views.colours import (
    COOLWARM,
    FIXED,
    NAMED_DIVERGING,
    NAMED_STEPS,
    NONE,
    VIRIDIS,
    colours,
    lab,
    levels,
    nearest_fixed,
    palette,
)

# The 16 colours as xterm and as the VGA card have them.
XTERM = [
    *("000000", "cd0000", "00cd00", "cdcd00", "0000ee", "cd00cd", "00cdcd", "e5e5e5"),
    *("7f7f7f", "ff0000", "00ff00", "ffff00", "5c5cff", "ff00ff", "00ffff", "ffffff"),
]
VGA = [
    *("000000", "aa0000", "00aa00", "aa5500", "0000aa", "aa00aa", "00aaaa", "aaaaaa"),
    *("555555", "ff5555", "55ff55", "ffff55", "5555ff", "ff55ff", "55ffff", "ffffff"),
]


def lightness(colors: list[str]) -> np.ndarray:
    return lab(np.array([to_rgb(f"#{color}") for color in colors]) * 255)[:, 0]


def test_lab_knows_black_white_and_red() -> None:
    known = lab(np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0]]))
    np.testing.assert_allclose(known, [[0, 0, 0], [100, 0, 0], [53.24, 80.09, 67.20]], atol=0.05)


@pytest.mark.parametrize("table", [VIRIDIS, COOLWARM])
def test_256_colours_are_the_nearest(table: str) -> None:
    stretch = [3, 1, 1]
    _, nearest = KDTree(lab(FIXED) * stretch).query(lab(colours(table)) * stretch)
    ours = FIXED[np.array(nearest_fixed(colours(table))) - 16]
    np.testing.assert_array_equal(ours, FIXED[nearest])


def test_256_colours_grow_lighter() -> None:
    shown = lab(FIXED[np.array(nearest_fixed(colours(VIRIDIS))) - 16])[:, 0]
    assert (shown - np.maximum.accumulate(shown)).min() > -2.5
    assert len(set(nearest_fixed(colours(VIRIDIS)))) > 10


@pytest.mark.parametrize("scheme", [XTERM, VGA], ids=["xterm", "vga"])
def test_16_colours_grow_lighter(scheme: list[str]) -> None:
    shown = lightness([scheme[number] for number in NAMED_STEPS])
    assert (np.diff(shown) > 5).all()
    diverging = lightness([scheme[number] for number in NAMED_DIVERGING])
    assert diverging.argmax() == 2


def test_16_colours_mix_from_step_to_step() -> None:
    fills = list(dict.fromkeys(palette("16", False).fills[:NONE]))
    assert len(fills) == 17
    assert fills[:5] == [("44", " "), ("94;44", "░"), ("94;44", "▒"), ("94;44", "▓"), ("104", " ")]


def test_levels_divide_the_map_evenly() -> None:
    np.testing.assert_array_equal(levels(np.array([0, 0.5, 1, np.nan])), [0, 128, 255, NONE])
    np.testing.assert_array_equal(levels((np.arange(256) + 0.5) / 256), np.arange(256))
