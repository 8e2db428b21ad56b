"""Compare AUROCs with scikit-learn, a naive loop and the example of DeLong et al. 1988; test permutations."""

from math import isnan

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from scipy.stats import binomtest, rankdata
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from attncli.features.separate.auroc import (
    QUANTILE,
    auroc_interval,
    best_threshold,
    corrected_p,
    difference_interval,
    error_without_variance,
    feature_aurocs,
    hedges_g,
    largest_by_chance,
    paired_difference,
    placements,
    ranked_features,
    roc_curve,
    separation,
)

PATIENTS = """
3.0 5.8 10 0   3.2 6.3  5 1   3.9 6.8  3 1   2.8 4.8  6 0   3.2 5.8  3 1   0.9 4.0  5 0   2.5 5.7  8 0
1.6 5.6  5 1   3.8 5.7  5 1   3.7 6.7  6 1   3.2 5.4  4 1   3.8 6.6  6 1   4.1 6.6  5 1   3.6 5.7  5 1
4.3 7.0  4 1   3.6 6.7  4 0   2.3 4.4  6 1   4.2 7.6  4 0   4.0 6.6  6 0   3.5 5.8  6 1   3.8 6.8  7 1
3.0 4.7  8 0   4.5 7.4  5 1   3.7 7.4  5 1   3.1 6.6  6 1   4.1 8.2  6 1   4.3 7.0  5 1   4.3 6.5  4 1
3.2 5.1  5 1   2.6 4.7  6 1   3.3 6.8  6 0   1.7 4.0  7 0   3.7 6.1  5 1   3.3 6.3  7 1   4.2 7.7  6 1
3.5 6.2  5 1   2.9 5.7  9 0   2.1 4.8  7 1   2.8 6.2  8 0   4.0 7.0  7 1   3.3 5.7  6 1   3.7 6.9  5 1
3.6 6.6  5 1
"""
"""Albumin, total protein, K-G score, outcome: DeLong et al. 1988, from SAS/STAT's example of LOGISTIC."""


def ties(seed: int, num_texts: int = 53, num_features: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(num_texts, generator=generator) < 0.4
    numbers = torch.randn(num_texts, num_features, generator=generator) + 0.5 * labels.unsqueeze(1)
    return (numbers * 3).round(), labels


@pytest.mark.parametrize("seed", range(2))
def test_auroc_and_its_error_agree_with_the_definition(seed: int) -> None:
    numbers, labels = ties(seed)
    result = separation(numbers, labels)
    assert torch.allclose(feature_aurocs(numbers, labels), result.auroc, atol=1e-12)
    for feature in range(numbers.shape[1]):
        column = numbers[:, feature].double()
        assert float(result.auroc[feature]) == pytest.approx(roc_auc_score(labels, column), abs=1e-12)
        positive, negative = column[labels, None], column[None, ~labels]
        kernel = (positive > negative).double() + 0.5 * (positive == negative).double()
        variance = kernel.mean(1).var() / kernel.shape[0] + kernel.mean(0).var() / kernel.shape[1]
        assert float(result.error[feature]) == pytest.approx(float(variance.sqrt()), abs=1e-12)
    ranks = rankdata(numbers.numpy(), axis=0) - (len(numbers) + 1) / 2
    assert np.allclose(ranked_features(numbers, labels).ranks.T, ranks)


def test_the_published_example() -> None:
    table = torch.tensor([float(number) for number in PATIENTS.split()], dtype=torch.float64).view(-1, 4)
    scores, is_event = table[:, :3] * torch.tensor([-1.0, -1.0, 1.0]), table[:, 3] == 0
    result = separation(scores, is_event)
    # Area and standard error as printed by SAS/STAT, which uses this method.
    published = [(0.7366, 0.0927), (0.6478, 0.1), (0.7258, 0.1028)]
    ours = zip(result.auroc.tolist(), result.error.tolist(), strict=True)
    assert [tuple(round(number, 4) for number in row) for row in ours] == published
    contrasts = [paired_difference(scores[:, test], scores[:, 2], is_event) for test in (0, 1)]
    rounded = [(round(row.difference, 4), round(row.error, 4)) for row in contrasts]
    assert rounded == [(0.0108, 0.0953), (-0.078, 0.1046)]


@pytest.mark.parametrize("seed", range(2))
def test_intervals_of_logits_agree_with_scipy(seed: int) -> None:
    """Student's t has the degrees of freedom of scipy's Welch test of the placements."""
    numbers, labels = ties(seed)
    result = separation(numbers, labels)
    placed = placements(numbers, labels)
    lower, upper = result.interval()
    for feature, auroc in enumerate(result.auroc.tolist()):
        test = scipy.stats.ttest_ind(*(part[:, feature].numpy() for part in placed), equal_var=False)
        assert float(result.degrees[feature]) == pytest.approx(test.df)
        half = scipy.stats.t.ppf(0.975, int(test.df)) * float(result.error[feature]) / (auroc * (1 - auroc))
        ends = scipy.special.expit(scipy.special.logit(auroc) + np.array([-half, half]))
        assert [float(lower[feature]), float(upper[feature])] == pytest.approx(list(ends), abs=1e-9)
    assert auroc_interval(1.0, 0.1, 5.0) == pytest.approx((1 - 1.959964 * 0.1, 1.0))
    assert all(
        map(isnan, (*auroc_interval(0.7, float("nan"), 3.0), *difference_interval(0.1, float("nan"), 3.0)))
    )
    assert auroc_interval(0.999, 0.4, 2.0) == pytest.approx((0.0, 1.0))


def test_a_paired_difference_agrees_with_the_covariances() -> None:
    numbers, labels = ties(0)
    placed = placements(numbers[:, :2], labels)
    covariance = torch.cov(placed.positive.T) / int(labels.sum()) + torch.cov(placed.negative.T) / int(
        (~labels).sum()
    )
    contrast = torch.tensor([1.0, -1.0], dtype=torch.float64)
    result = paired_difference(numbers[:, 0], numbers[:, 1], labels)
    assert result.error == pytest.approx(float((contrast @ covariance @ contrast).sqrt()), abs=1e-12)
    aurocs = separation(numbers[:, :2], labels).auroc
    assert result.difference == pytest.approx(float(aurocs[0] - aurocs[1]), abs=1e-12)


def test_groups_that_do_not_overlap_have_no_error() -> None:
    labels = torch.tensor([False, False, True, True])
    result = separation(torch.tensor([[0.0, 3.0], [1.0, 2.0], [2.0, 1.0], [3.0, 0.0]]), labels)
    assert result.auroc.tolist() == [1.0, 0.0]
    assert result.error.isnan().all()
    alone = separation(torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([False, False, True]))
    assert alone.auroc.tolist() == [0.5] and alone.error.isnan().all()


def test_permutations_keep_groups_and_agree_with_the_definition() -> None:
    numbers, labels = ties(5, num_texts=31)
    groups = torch.arange(31) % 3
    ranks = ranked_features(numbers, labels).ranks
    largest = largest_by_chance(ranks, labels, groups, count=300, generator=torch.Generator().manual_seed(1))
    assert largest.shape == (300,)
    # The same permutations, one at a time, by the definition.
    generator = torch.Generator().manual_seed(1)
    by_group = groups.argsort(stable=True)
    keys = torch.rand(256, 31, generator=generator, dtype=torch.float64)
    for permutation in range(20):
        order = (keys[permutation, by_group] + groups[by_group]).argsort()
        permuted = torch.empty_like(labels)
        permuted[by_group] = labels[by_group][order]
        for group in range(3):
            assert permuted[groups == group].sum() == labels[groups == group].sum()
        expected = (separation(numbers, permuted).auroc - 0.5).abs().max()
        assert float(largest[permutation]) == pytest.approx(float(expected), abs=1e-6)


def test_groups_with_one_label_exchange_labels_as_a_whole() -> None:
    """Each of 24 groups has one label and its own level, so features show only differences between groups."""
    small = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        groups = torch.arange(24).repeat_interleave(5)
        labels = (torch.randperm(24, generator=generator) < 11)[groups]
        numbers = torch.randn(24, 7, generator=generator)[groups] + 0.1 * torch.randn(
            120, 7, generator=generator
        )
        largest = largest_by_chance(
            ranked_features(numbers, labels).ranks, labels, groups, count=99, generator=generator
        )
        small += float(corrected_p(separation(numbers, labels).auroc, largest).min()) < 0.05
    assert small <= 6


def test_an_error_without_variance_agrees_with_clopper_and_pearson() -> None:
    for count in (2, 7, 31):
        lowest = binomtest(count, count).proportion_ci(0.95, method="exact").low
        assert 1 - QUANTILE * error_without_variance(count, 40) == pytest.approx(lowest)
    assert isnan(error_without_variance(1, 40))


def test_corrected_p_is_small_in_five_percent_of_random_cases() -> None:
    """The corrected p of the best of 40 features without any signal is below 0.05 in about 5 of 100."""
    below = 0
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(41, 40, generator=generator)
        labels = torch.randperm(41, generator=generator) < 17
        groups = torch.zeros(41, dtype=torch.int64)
        largest = largest_by_chance(
            ranked_features(numbers, labels).ranks, labels, groups, count=199, generator=generator
        )
        below += float(corrected_p(separation(numbers, labels).auroc, largest).min()) < 0.05
    assert 1 <= below <= 11  # a binomial count (100, 0.05) is outside in 1 % of cases


def test_effect_size_threshold_and_curve() -> None:
    numbers, labels = ties(3)
    positive, negative = numbers[labels].double(), numbers[~labels].double()
    count = len(numbers)
    pooled = (
        (positive.var(dim=0) * (len(positive) - 1) + negative.var(dim=0) * (len(negative) - 1)) / (count - 2)
    ).sqrt()
    cohen = (positive.mean(dim=0) - negative.mean(dim=0)) / pooled
    assert torch.allclose(hedges_g(numbers, labels), cohen * (1 - 3 / (4 * count - 9)))
    assert hedges_g(torch.ones(5, 1), torch.tensor([True, True, False, False, False])).isnan().all()

    curve = roc_curve(numbers[:, 0], labels)
    false, true, _ = sklearn_roc_curve(labels, numbers[:, 0], drop_intermediate=False)
    assert np.allclose(curve.false_positive_rate, false) and np.allclose(curve.true_positive_rate, true)
    threshold = best_threshold(numbers[:, 0], labels)
    chosen = numbers[:, 0] > threshold
    reached = float(chosen[labels].double().mean() - chosen[~labels].double().mean())
    assert reached == pytest.approx(float((true - false).max()))
    assert best_threshold(torch.ones(3), torch.tensor([True, False, True])) == 1.0
