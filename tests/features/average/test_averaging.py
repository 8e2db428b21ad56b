"""Averages against cumulative sums."""

import pytest
import torch

from attncli.core.mechanisms import (
    average_by_loop,
    averaging_weights,
    causal_mask,
    full_mask,
    softmax_averaging_weights,
)
from tests.conftest import in_turn


@pytest.mark.parametrize(("shape", "mean"), in_turn([(5, 3), (2, 7, 3), (1, 1)], [True, False]))
def test_past_is_the_cumulative_sum(shape: tuple[int, ...], mean: bool) -> None:
    vectors = torch.randn(shape, generator=torch.Generator().manual_seed(5)).double()
    mask = causal_mask(shape[-2], shape[-2])
    expected = vectors.cumsum(dim=-2)
    if mean:
        expected = expected / torch.arange(1, shape[-2] + 1).unsqueeze(-1)
    torch.testing.assert_close(average_by_loop(vectors, mask, mean=mean), expected)
    torch.testing.assert_close(
        averaging_weights(mask, mean=mean).double() @ vectors, expected, atol=1e-6, rtol=0
    )


def test_all_is_the_mean_of_all_and_softmax_gives_it_too() -> None:
    vectors = torch.randn(7, 3, generator=torch.Generator().manual_seed(6))
    mask = full_mask(7, 7)
    expected = vectors.mean(dim=0).expand(7, 3)
    torch.testing.assert_close(softmax_averaging_weights(mask) @ vectors, expected)
    torch.testing.assert_close(average_by_loop(vectors, mask, mean=True), expected)


def test_softmax_of_masked_zeros_is_the_averaging_matrix() -> None:
    mask = causal_mask(11, 11)
    torch.testing.assert_close(softmax_averaging_weights(mask), averaging_weights(mask, mean=True))
