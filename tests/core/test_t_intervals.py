"""Intervals against scipy."""

import numpy as np
import pytest
import scipy.stats
import torch

from attncli.core.summaries import mean_interval, share_interval, t_quantile
from tests.conftest import in_turn


@pytest.mark.parametrize(
    ("degrees", "level"),
    in_turn([1, 2, 3, 4, 5, 7, 10, 29, 30, 199, 998, 999, 12_345, 99_999], [0.5, 0.95, 0.999]),
)
def test_quantiles_of_t_match_scipy(degrees: int, level: float) -> None:
    expected = scipy.stats.t.ppf((1 + level) / 2, degrees)
    assert t_quantile(degrees, level) == pytest.approx(expected, rel=1e-9)


def test_the_interval_of_a_mean_matches_scipy() -> None:
    generator = torch.Generator().manual_seed(11)
    groups = [torch.rand(n, generator=generator, dtype=torch.float64) ** 3 for n in (2, 3, 17, 17, 500)]
    mean = torch.stack([group.mean() for group in groups])
    squares = torch.stack([(group - group.mean()).square().sum() for group in groups])
    lower, upper = mean_interval(torch.tensor([len(group) for group in groups]), mean, squares)
    expected = [
        scipy.stats.t.interval(0.95, len(g) - 1, loc=g.mean().item(), scale=scipy.stats.sem(g.numpy()))
        for g in groups
    ]
    np.testing.assert_allclose(torch.stack([lower, upper], dim=-1).numpy(), expected, rtol=1e-9)


def test_fewer_than_two_texts_have_no_interval() -> None:
    mean = torch.tensor([0.5, torch.nan], dtype=torch.float64)
    lower, upper = mean_interval(torch.tensor([1, 0]), mean, torch.zeros(2, dtype=torch.float64))
    assert lower.isnan().all() and upper.isnan().all()


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (3, 7), (0, 50), (999, 1000), (41, 83)])
def test_the_interval_of_a_share_matches_scipy(hits: int, count: int) -> None:
    expected = scipy.stats.binomtest(hits, count).proportion_ci(0.95, method="wilson")
    assert share_interval(hits, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_share_without_words_has_no_interval() -> None:
    assert np.isnan(share_interval(0, 0)).all()
