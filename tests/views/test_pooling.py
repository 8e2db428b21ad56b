"""Pooled blocks against a naive loop over them."""

import numpy as np
import pytest

from attncli.views.matrices import block_maximum, block_mean

VALUES = np.random.default_rng(3).normal(size=(3, 7, 11))
VALUES[:, 2:4, 3:6] = np.nan
VALUES[0, 0, 0] = -np.inf


@pytest.mark.parametrize("block", [(1, 1), (2, 3), (3, 2), (7, 11), (20, 20)])
def test_a_block_has_the_mean_and_the_maximum_of_its_numbers(block: tuple[int, int]) -> None:
    means, maxima = block_mean(VALUES, block), block_maximum(VALUES, block)
    down, along = block
    for i, matrix in enumerate(VALUES):
        for row in range(means.shape[1]):
            for column in range(means.shape[2]):
                part = matrix[row * down : (row + 1) * down, column * along : (column + 1) * along]
                numbers = [n for n in part.ravel().tolist() if np.isfinite(n)]
                mean = sum(numbers) / len(numbers) if numbers else np.nan
                np.testing.assert_allclose(means[i, row, column], mean, atol=1e-12)
                np.testing.assert_equal(maxima[i, row, column], max(numbers, default=np.nan))
    assert means.shape == (3, -(-7 // down), -(-11 // along))
