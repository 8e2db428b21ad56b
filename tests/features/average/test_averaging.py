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
def test_averages_of_the_past_are_cumulative_sums(shape: tuple[int, ...], mean: bool) -> None:
    vectors = torch.randn(shape, generator=torch.Generator().manual_seed(5)).double()
    mask = causal_mask(shape[-2], shape[-2])
    expected = vectors.cumsum(dim=-2)
    if mean:
        expected = expected / torch.arange(1, shape[-2] + 1).unsqueeze(-1)
    torch.testing.assert_close(average_by_loop(vectors, mask, mean=mean), expected)
    weights = averaging_weights(mask, mean=mean)
    torch.testing.assert_close(weights.double() @ vectors, expected, atol=1e-6, rtol=0)
    if mean:
        torch.testing.assert_close(softmax_averaging_weights(mask), weights)


def test_the_average_of_all_tokens_is_their_mean() -> None:
    vectors = torch.randn(7, 3, generator=torch.Generator().manual_seed(6))
    mask = full_mask(7, 7)
    expected = vectors.mean(dim=0).expand(7, 3)
    torch.testing.assert_close(softmax_averaging_weights(mask) @ vectors, expected)
    torch.testing.assert_close(average_by_loop(vectors, mask, mean=True), expected)
