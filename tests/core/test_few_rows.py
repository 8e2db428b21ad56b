"""A few vectors times a half-precision weight, against float64 and torch's product."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.core import runtime
from attncli.core.few_rows import HALVES, MOST_ROWS, write_products
from tests.core.test_compiled_pass import needs_compiler

TOLERANCE = 2e-6
"""Of the sum of the sizes of what is added up: float32 in any order."""


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The implementation of the products."""
    if request.param == "torch":
        monkeypatch.setenv(runtime.SWITCH, "0")
    runtime.library.cache_clear()
    yield request.param
    runtime.library.cache_clear()


def assert_products(rows: torch.Tensor, weight: torch.Tensor) -> None:
    """The products are in the right columns, and nothing else is written."""
    before, behind = 2, 3
    output = torch.full((len(rows), before + len(weight) + behind), 7.0)
    write_products(rows, weight, output, before)
    found = output[:, before:-behind]
    expected = rows.double() @ weight.double().T
    sizes = rows.double().abs() @ weight.double().abs().T
    assert ((found - expected).abs() <= TOLERANCE * sizes).all()
    assert (output[:, :before] == 7).all() and (output[:, -behind:] == 7).all()


@needs_compiler
def test_it_is_installed() -> None:
    assert runtime.library(runtime.FEW_ROWS) is not None


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@given(
    seed=st.integers(0, 2**31),
    num_rows=st.integers(1, MOST_ROWS + 3),
    dim=st.integers(1, 70) | st.sampled_from([257, 1023, 4096]),
    num_weights=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_matches_float64(
    dtype: torch.dtype, seed: int, num_rows: int, dim: int, num_weights: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, dim, generator=generator)
    assert_products(rows, torch.randn(num_weights, dim, generator=generator).to(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_both_ways_match_float64(dtype: torch.dtype, way: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for num_rows, dim, num_weights in ((1, 67, 5), (3, 128, 7), (8, 31, 4)):
        rows = torch.randn(num_rows, dim, generator=generator)
        assert_products(rows, torch.randn(num_weights, dim, generator=generator).to(dtype))


def assert_every_number_is_widened(dtype: torch.dtype) -> None:
    """All numbers with 16 bits, subnormal numbers, infinities and NaN included."""
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).unsqueeze(1)
    output = torch.empty(1, len(numbers))
    write_products(torch.ones(1, 1), numbers, output, 0)
    torch.testing.assert_close(output[0], numbers[:, 0].float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_number_is_widened_exactly(dtype: torch.dtype, way: str) -> None:
    assert_every_number_is_widened(dtype)
