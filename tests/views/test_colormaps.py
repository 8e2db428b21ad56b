"""Positions on a colour map against matplotlib's maps and norms, and against closed forms."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import CenteredNorm, LogNorm, Normalize

from attncli.views.colours import COOLWARM, VIRIDIS, colours, shading

VALUES = np.random.default_rng(5).uniform(0.01, 3, (3, 5))


@pytest.mark.parametrize(("name", "ours"), [("viridis", VIRIDIS), ("coolwarm", COOLWARM)])
def test_the_maps_equal_those_of_matplotlib(name: str, ours: str) -> None:
    theirs = matplotlib.colormaps[name](np.arange(256))[:, :3] * 255
    np.testing.assert_array_equal(colours(ours), theirs.round())


def test_amounts_span_the_map() -> None:
    found = shading(VALUES)
    np.testing.assert_allclose(found.places, Normalize()(VALUES))
    assert (found.low, found.high) == (VALUES.min(), VALUES.max()) and not found.is_diverging


def test_weights_start_at_zero_and_their_logarithm_spans_a_factor_of_ten() -> None:
    found = shading(VALUES, from_zero=True)
    np.testing.assert_allclose(found.places, Normalize(vmin=0)(VALUES))
    assert (found.low, found.high) == (0, VALUES.max())
    for row, places in zip(VALUES, shading(VALUES, "row", from_zero=True).places, strict=True):
        np.testing.assert_allclose(places, Normalize(vmin=0)(row))
    nearly_uniform = np.array([[0.0099, 0.01, 0.0101]])
    places = shading(nearly_uniform, "log", from_zero=True).places
    np.testing.assert_allclose(places, LogNorm(vmin=0.00101)(nearly_uniform))
    signed = shading(VALUES - 1, from_zero=True)
    np.testing.assert_allclose(signed.places, CenteredNorm()(VALUES - 1))


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_compared_numbers_share_the_ends(scale: str) -> None:
    other = np.array([[0.001, 7.0, np.nan]])
    both = shading(np.concatenate([VALUES.ravel(), other[0, :2]]), scale)
    found = shading(VALUES, scale, compared=[other])
    np.testing.assert_allclose(found.places.ravel(), both.places[:-2])
    assert (found.low, found.high) == (0.001, 7.0)


def test_logarithms_are_even_and_zero_is_at_the_low_end() -> None:
    np.testing.assert_allclose(shading(VALUES, "log").places, LogNorm()(VALUES))
    with_zero = np.array([[0.0, 0.01, 0.1, 1.0]])
    np.testing.assert_allclose(shading(with_zero, "log").places, [[0, 0, 0.5, 1]])


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_signed_numbers_have_zero_in_the_middle(scale: str) -> None:
    signed = VALUES - 1
    found = shading(signed, scale)
    np.testing.assert_allclose(found.places, CenteredNorm()(signed))
    assert found.is_diverging and found.low == -found.high and found.scale == "linear"


def test_each_row_has_its_own_range() -> None:
    for row, places in zip(VALUES, shading(VALUES, "row").places, strict=True):
        np.testing.assert_allclose(places, Normalize()(row))
    signed = shading(VALUES - 1, "row").places
    for row, places in zip(VALUES - 1, signed, strict=True):
        np.testing.assert_allclose(places, CenteredNorm()(row))


@pytest.mark.parametrize("scale", ["linear", "log", "row"])
def test_missing_numbers_and_skipped_keys_have_no_position(scale: str) -> None:
    sunk = np.concatenate([np.full((3, 1), 99.0), VALUES, np.full((3, 1), np.nan)], axis=1)
    found = shading(sunk, scale, skip_keys=1)
    assert np.isnan(found.places[:, [0, -1]]).all()
    np.testing.assert_allclose(found.places[:, 1:-1], shading(VALUES, scale).places)


@pytest.mark.parametrize("scale", ["linear", "log", "row"])
@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[2.0, 2.0]], [[-1.0, -1.0]], [[np.nan, np.inf]], [[]]])
def test_flat_and_empty_matrices_have_places(scale: str, values: list[list[float]]) -> None:
    places = shading(np.array(values), scale).places
    assert ((places >= 0) & (places <= 1) | np.isnan(places)).all()
