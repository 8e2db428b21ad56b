"""Heads that separate two groups of texts, on tables of features without a model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from attncli.errors import UserError
from attncli.features.separate.auroc import error_without_variance
from attncli.features.separate.detectors import (
    StandardFeatures,
    TextsToFit,
    distracted_heads,
    lasso_logistic,
    logistic_regression,
    sparse_regression,
)
from attncli.features.separate.results import SeparatedTexts
from attncli.features.separate.separation import ALL_HEADS, LENGTH, WORDS, separated
from attncli.features.separate.text_features import FeatureTable, HeadFeature, usable_features
from attncli.measure.folds import group_parts
from attncli.models.labelled_files import LabelledText
from attncli.models.text_files import TextLine
from attncli.views.matrices import _of_rows

WORDS_OF_TEXTS = ("cat", "mat", "rain", "fell", "over", "seven", "quiet", "hills", "nobody", "came", "while")


def drawn_table(
    seed: int,
    *,
    num_texts: int = 60,
    num_heads: int = 12,
    shift: float = 0.0,
    longer: int = 0,
    num_groups: int = 3,
) -> tuple[FeatureTable, torch.Tensor]:
    """A table of noise; positive texts shift the first head and are `longer` by some tokens."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(num_texts, generator=generator) < num_texts * 0.4
    numbers = torch.randn(num_texts, num_heads, generator=generator)
    numbers[:, 0] += shift * labels
    chosen = torch.randint(len(WORDS_OF_TEXTS), (num_texts, 9), generator=generator)
    texts = []
    for number, words in enumerate(chosen.tolist()):
        text = " ".join(WORDS_OF_TEXTS[word] for word in words)
        group = f"group {number % num_groups}" if num_groups else None
        texts.append(
            LabelledText(TextLine(number + 1, text), {"text": text}, str(int(labels[number])), group)
        )
    lengths = torch.randint(8, 19, (num_texts,), generator=generator) + longer * labels
    features = [HeadFeature("self", head // 4, head % 4, "entropy") for head in range(num_heads)]
    return FeatureTable(features, numbers, texts, lengths, None), labels


def result_of(seed: int, permutations: int = 99, **settings: float) -> SeparatedTexts:
    table, labels = drawn_table(seed, **settings)  # type: ignore[arg-type]
    return separated(table, labels, permutations=permutations, seed=seed)


def test_a_separating_head_is_found_and_holds_on_held_out_groups() -> None:
    result = result_of(1, shift=3.0)
    first = result.strongest[0]
    assert (first.layer, first.head, first.statistic) == (0, 0, "entropy")
    assert first.p_value == pytest.approx(0.01)
    assert first.effect_size is not None and first.effect_size > 2
    assert result.held_out.auroc is not None and result.held_out.auroc > 0.9
    assert result.attention_adds
    assert {row.group for row in result.by_group} == {"group 0", "group 1", "group 2"}
    best = max(result.heads, key=lambda row: abs((row.auroc or 0.5) - 0.5))
    assert (best.layer, best.head) == (0, 0) and best.statistic == "entropy"
    assert all(row.is_right == (row.label == row.predicted) for row in result.predictions)


def test_aurocs_and_coefficients_agree_with_scikit_learn() -> None:
    table, labels = drawn_table(2, shift=1.0)
    result = separated(table, labels, permutations=19, seed=2)
    for row, column in zip(result.features, table.numbers.T, strict=True):
        assert row.auroc == pytest.approx(roc_auc_score(labels, column), abs=1e-12)
    parts = torch.tensor([number % 3 for number in range(60)])
    texts = TextsToFit(table.numbers, labels, parts, torch.Generator().manual_seed(0))
    plain = logistic_regression(texts)
    theirs = LogisticRegression(max_iter=1000).fit(table.numbers.double().numpy(), labels.numpy())
    assert np.allclose(plain.weights, theirs.coef_[0], atol=1e-12)
    sparse = sparse_regression(texts)
    numbers = table.numbers.double()
    standard = ((numbers - numbers.mean(0)) / numbers.std(0, correction=0)).numpy()
    again = LogisticRegression(l1_ratio=1, C=sparse.penalty, solver="liblinear", max_iter=5000, tol=1e-10)
    again.fit(standard, labels.numpy())
    assert [*sparse.places] == again.coef_[0].nonzero()[0].tolist()
    assert np.allclose(sparse.weights, again.coef_[0][[*sparse.places]], atol=1e-4)
    assert np.allclose(
        sparse.scores(table.numbers),
        standard[:, [*sparse.places]] @ sparse.weights.numpy() + sparse.intercept,
    )


@pytest.mark.parametrize(("num_texts", "strength"), [(61, 8.0), (211, 0.5), (211, 2.0)])
def test_a_sparse_regression_of_similar_features_agrees_with_scikit_learn(
    num_texts: int, strength: float
) -> None:
    """With more features than texts, and correlated features, the minimum and the weights are the same."""
    generator = torch.Generator().manual_seed(num_texts)
    shared = torch.randn(num_texts, 7, generator=generator)
    numbers = shared @ torch.randn(7, 307, generator=generator) + torch.randn(
        num_texts, 307, generator=generator
    )
    labels = torch.rand(num_texts, generator=generator) < torch.sigmoid(shared[:, 0])
    standard, penalty = StandardFeatures.standardise(3 + numbers), strength / num_texts**0.5
    weights = lasso_logistic(standard, labels, penalty).numpy()
    columns = standard.columns(torch.arange(307)).numpy()
    theirs = LogisticRegression(l1_ratio=1, C=penalty, solver="liblinear", max_iter=20000, tol=1e-8)
    theirs.fit(columns, labels.numpy())
    assert np.allclose(weights, [*theirs.coef_[0], *theirs.intercept_], atol=2e-3)
    assert (weights != 0).sum() > (strength > 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_threshold_separates_the_training_texts(seed: int) -> None:
    table, labels = drawn_table(seed, shift=1.0, num_heads=40)
    parts = torch.arange(60) % 3
    detector = sparse_regression(TextsToFit(table.numbers, labels, parts, torch.Generator().manual_seed(0)))
    told = detector.scores(table.numbers) > detector.threshold
    assert told[labels].double().mean() > 0.7 > 0.35 > told[~labels].double().mean()


@pytest.mark.nightly
def test_shuffled_labels_have_an_auroc_of_one_half() -> None:
    """Over 100 seeds of noise, the mean is 0.5, intervals cover it, and p is below 0.05 in about 5."""
    results = [result_of(seed, num_texts=45, num_heads=8, permutations=39) for seed in range(100)]
    aurocs = np.array([result.held_out.auroc for result in results], dtype=float)
    assert abs(aurocs.mean() - 0.5) < 4 * aurocs.std() / 10
    covered = [(result.held_out.lower or 0) <= 0.5 <= (result.held_out.upper or 1) for result in results]
    assert sum(covered) >= 85
    small = sum(min(row.p_value for row in result.features) < 0.05 for result in results)
    assert small <= 11
    assert sum(result.attention_adds for result in results) <= 10


def test_equal_columns_of_a_head_are_listed_once() -> None:
    table, labels = drawn_table(5, num_heads=7, shift=1.0)
    twice = [HeadFeature("self", 0, 0, "current_token_mul"), HeadFeature("self", 2, 1, "current_token_mul")]
    numbers = torch.cat([table.numbers, table.numbers[:, [0, 0]]], dim=1)
    result = separated(replace(table, features=[*table.features, *twice], numbers=numbers), labels)
    listed = [(row.layer, row.head, row.statistic) for row in result.strongest]
    # Equal columns of one head are listed once, those of another head as well.
    assert (0, 0, "current_token_mul") not in listed and (0, 0, "entropy") in listed
    assert (2, 1, "current_token_mul") in listed and len(listed) == 8 and result.num_features == 9
    assert result.curves[0].curve == "chance"


def test_a_leak_by_length_is_reported() -> None:
    result = result_of(3, longer=12)
    assert result.best_baseline().detector == LENGTH
    assert (result.held_out.baseline or 0) > 0.95
    assert not result.attention_adds
    by_name = {row.detector: row for row in result.detectors}
    assert by_name[ALL_HEADS].difference == pytest.approx(
        (result.held_out.auroc or 0) - (result.held_out.baseline or 0)
    )
    assert by_name[WORDS].kind == "baseline"


@pytest.mark.parametrize("num_groups", [3, 23])
def test_groups_never_cross_folds(num_groups: int) -> None:
    table, labels = drawn_table(4, num_texts=92, num_groups=num_groups)
    groups = [text.group for text in table.texts]
    parts = group_parts(groups, labels, torch.Generator().manual_seed(0))
    assert len(parts.names) == min(num_groups, 10)
    for split in parts.splits():
        held = {group for group, is_held in zip(groups, split.held_out.tolist(), strict=True) if is_held}
        fitted = {
            group for group, is_fitted in zip(groups, split.choosing.tolist(), strict=True) if is_fitted
        }
        assert held and fitted and not held & fitted
    assert sum(split.held_out for split in parts.splits()).eq(1).all()  # type: ignore[union-attr]


@pytest.mark.nightly
def test_groups_that_share_folds_are_permuted_separately() -> None:
    """Numbers and shares of positive texts differ between 24 groups, but not within the groups."""
    small = 0
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        table, _ = drawn_table(seed, num_texts=240, num_heads=3, num_groups=24)
        levels = torch.randn(24, generator=generator)
        group = torch.arange(240) % 24
        labels = torch.rand(240, generator=generator) < 0.5 + 0.2 * levels.sign()[group]
        table.numbers[:] = table.numbers + 4 * levels[group].unsqueeze(1)
        parts = group_parts([text.group for text in table.texts], labels, generator)
        assert all(len(parts.groups[group == number].unique()) == 1 for number in range(24))
        result = separated(table, labels, permutations=49, seed=seed)
        small += min(row.p_value for row in result.features) < 0.05
    assert small <= 1


def test_a_group_of_unknown_error_leaves_no_interval() -> None:
    table, labels = drawn_table(1, shift=3.0, num_texts=40, num_groups=2)
    lone = int(labels.nonzero()[0])
    for place, text in enumerate(table.texts):
        is_small = place == lone or (not labels[place] and place % 4 == 1)
        table.texts[place] = replace(text, group="small" if is_small else f"group {place % 3}")
    result = separated(table, labels, permutations=9)
    held = result.held_out
    assert (held.lower, held.upper, held.difference_lower, held.difference_upper) == (None,) * 4
    assert held.difference is not None and not result.attention_adds
    sure = result_of(1, shift=30.0)
    lower = 1 - 1.96 * error_without_variance(8, 12) / 3**0.5
    assert sure.held_out.auroc == 1 and sure.held_out.lower == pytest.approx(lower, abs=0.02)


def test_texts_without_a_group_or_with_the_only_label_are_divided() -> None:
    labels = torch.tensor([True, False] * 30)
    empty = [f"family {number % 3}" if labels[number] else None for number in range(60)]
    plain = [f"family {number % 3}" if labels[number] else "plain" for number in range(60)]
    for groups, shared in ((empty, None), (plain, "plain")):
        parts = group_parts(groups, labels, torch.Generator().manual_seed(0))
        assert parts.shared == shared and parts.names == ("family 0", "family 2", "family 1")
        for part in range(3):
            assert int((~labels[parts.by_text == part]).sum()) == 10
    with pytest.raises(UserError, match="has texts of only one label"):
        group_parts(["a", "b", "a", "b"], torch.tensor([True, False, True, False]), torch.Generator())
    with pytest.raises(UserError, match="must have at least two groups"):
        group_parts(["a"] * 60, labels, torch.Generator(), key="family")
    with pytest.raises(UserError, match="needs at least 5 texts of each"):
        group_parts([None] * 6, labels[:6], torch.Generator())


def test_distracted_heads_agree_with_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(40, 7, generator=generator)
    labels = torch.arange(40) % 2 == 1
    numbers[labels, 3] -= 3.0
    numbers[labels, 5] -= 0.4
    texts = TextsToFit(numbers, labels, torch.zeros(40, dtype=torch.int64), generator)
    assert [*distracted_heads(texts).places] == [3]
    weak = TextsToFit(numbers[:, 4:], labels, texts.parts, generator)
    assert 1 in distracted_heads(weak).places


def test_constant_features_are_left_out_and_gaps_filled() -> None:
    nothing = float("nan")
    numbers = torch.tensor([[1.0, 2.0, nothing], [1.0, nothing, nothing], [1.0, 4.0, 1.0], [1.0, 3.0, 2.0]])
    places, filled = usable_features(numbers)
    assert places == [1] and filled[:, 0].tolist() == [2.0, 3.0, 4.0, 3.0]


def test_curves_are_drawn_over_the_false_positive_rate() -> None:
    rows = [{"curve": "one", "false_positive_rate": [0.0, 0.25, 1.0], "true_positive_rate": [0.5, 0.75, 1.0]}]
    (drawn,) = _of_rows("curves", rows)
    assert drawn.x_name == "false_positive_rate" and drawn.curves[0].x.tolist() == [0.0, 0.25, 1.0]
