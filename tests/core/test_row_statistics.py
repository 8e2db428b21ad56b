"""Closed forms of row statistics, top keys against a stable sort, moments against scipy, and a gradient norm.

test_each_engine.py compares every statistic with loops over rows.
"""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

from attncli.core.formulas import (
    KEYS_PER_RANK,
    Rows,
    load_formula,
    softmax_gradient_norm,
    top_keys,
)
from attncli.core.mechanisms import causal_mask, full_mask
from attncli.core.names import ROW_STATISTICS, cache_ends
from attncli.core.summaries import moments
from tests.conftest import in_pairs


def scores_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given_rows(weights: torch.Tensor, visible: torch.Tensor) -> Rows:
    """Given rows, of queries and keys from the first ones on."""
    return Rows(weights, visible.sum(-1), *(torch.arange(count) for count in weights.shape[-2:]))


def statistic(name: str, rows: Rows) -> torch.Tensor:
    found: torch.Tensor = load_formula(ROW_STATISTICS[name].formula)(rows)
    return found


def test_local_mass_covers_the_first_4_and_nearest_64_keys() -> None:
    assert [cache_ends(count) for count in (0, 1, 9, 128, 129, 511, 512, 16384)] == [
        (0, 0), (1, 1), (1, 2), (1, 16), (2, 17), (4, 64), (4, 64), (4, 64)
    ]  # fmt: skip
    visible = causal_mask(600, 600)
    weights = scores_of(1, 600, 600, seed=7).masked_fill(~visible, -torch.inf).softmax(dim=-1)
    found = statistic("local_mass", given_rows(weights, visible))[0]
    torch.testing.assert_close(found[500], weights[0, 500, :4].sum() + weights[0, 500, 437:].sum())
    torch.testing.assert_close(found[:68], torch.ones(68, dtype=torch.float64))


def test_uniform_and_one_hot_rows() -> None:
    visible = full_mask(1, 7)
    uniform, one_hot = torch.full((1, 7), 1 / 7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)[2:3]
    figures = {
        name: tuple(statistic(name, given_rows(weights, visible)).item() for weights in (uniform, one_hot))
        for name in ROW_STATISTICS
    }
    assert figures["entropy"] == pytest.approx((np.log(7), 0))
    assert figures["normalized_entropy"] == pytest.approx((1, 0))
    assert figures["participation"] == pytest.approx((7, 1))
    assert np.isnan(figures["max_score"]).all(), "given weights have no scores"


def test_top_keys_are_visible_and_earlier_keys_win_ties() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0.1, 0.2, 0.3, 0.4]])
    ranking = weights.masked_fill(~causal_mask(4, 4), -torch.inf)
    keys = top_keys(ranking, 3, unit=0.0)
    assert keys.tolist() == [[0, -1, -1], [0, 1, -1], [1, 2, 0], [3, 2, 1]]
    assert torch.equal(ranking, weights.masked_fill(~causal_mask(4, 4), -torch.inf)), "left as it was"
    beyond = top_keys(ranking, 9, unit=0.0)
    assert beyond.shape == (4, 9) and (beyond[:, 4:] == -1).all()
    assert beyond[:, :4].tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [1, 2, 0, -1], [3, 2, 1, 0]]


@pytest.mark.parametrize(
    ("k", "num_keys", "levels", "last_bits"),
    in_pairs([1, 3], [5, KEYS_PER_RANK, 3 * KEYS_PER_RANK, 500], [1, 2, 4, 10**6], [0, 8]),
)
def test_top_keys_match_a_stable_sort(k: int, num_keys: int, levels: int, last_bits: int) -> None:
    """Both ways to find them, with many equal entries and with none, and with rows that see few keys.

    Rounding errors in the last bits change nothing.
    """
    generator = torch.Generator().manual_seed(levels)
    ranking = torch.randint(0, levels, (2, 31, num_keys), generator=generator).double()
    hidden = torch.rand(2, 31, num_keys, generator=generator) < 0.5
    ranking[0] = ranking[0].masked_fill(hidden[0], -torch.inf)
    ranking[1, 0], ranking[1, 1, 1:] = -torch.inf, -torch.inf
    noise = last_bits * (torch.rand(ranking.shape, generator=generator, dtype=torch.float64) - 0.5)
    found = top_keys(ranking * (1 + noise * torch.finfo(torch.float64).eps), k, unit=0.0).numpy()
    order = np.argsort(-ranking.numpy(), axis=-1, kind="stable")[..., :k]
    values = np.take_along_axis(ranking.numpy(), order, axis=-1)
    np.testing.assert_array_equal(found, np.where(values == -np.inf, -1, order))


def test_moments_match_scipy() -> None:
    numbers = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    described = scipy.stats.describe(numbers.double().numpy(), axis=None)
    assert moments(numbers) == pytest.approx(
        {
            "mean": described.mean,
            "variance": described.variance,
            "min": described.minmax[0],
            "max": described.minmax[1],
        }
    )
    assert np.isnan(moments(torch.ones(1))["variance"])


@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0, 30.0])
def test_gradient_norm_matches_autograds_jacobian(factor: float) -> None:
    logits = factor * torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(dim=-1), logits)
    ours = softmax_gradient_norm(logits.softmax(dim=-1)).item()
    assert ours == pytest.approx(torch.linalg.norm(jacobian).item(), rel=1e-9)
