"""Predictions against torch's losses and scipy's rank correlation."""

import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from attncli.core.predictions import Predictions, token_losses
from attncli.core.summaries import jensen_shannon, rank_correlation, relative_changes


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_loss_and_divergence_match_torch(logits: torch.Tensor) -> None:
    targets = torch.tensor([6, 0, 3, 3, 1])
    torch.testing.assert_close(token_losses(logits[0], targets).mean(), F.cross_entropy(logits[0], targets))
    p, q = logits.log_softmax(dim=-1)
    expected = F.kl_div(q, p, log_target=True, reduction="none").sum(dim=-1)
    predictions = Predictions(logits[0], targets)
    torch.testing.assert_close(predictions.compared(logits[1]).divergences, expected)
    after = predictions.compared(logits[1, 3:], first=3)
    torch.testing.assert_close(after.divergences, expected[3:])
    assert predictions.compared(logits[0]).divergences.max() == 0


@pytest.mark.parametrize(
    ("num_tokens", "spread", "shift", "change"),
    [(49_152, 3, 0, 0.05), (262_144, 5, 300, 0.3), (49_152, 0.1, -80, 0.01)],
)
def test_large_vocabularies_match_float64(
    num_tokens: int, spread: float, shift: float, change: float
) -> None:
    """A shift of all logits does not change the numbers, even in float32."""
    generator = torch.Generator().manual_seed(num_tokens)
    first = spread * torch.randn(11, num_tokens, generator=generator) + shift
    second = first + change * torch.randn(11, num_tokens, generator=generator)
    targets = torch.randint(num_tokens, (11,), generator=generator)
    p, q = (each.double().log_softmax(dim=-1) for each in (first, second))
    predictions = Predictions(first, targets)
    found = predictions.compared(second)
    exact = {"rtol": 0, "atol": 1e-9}
    divergences = (p.exp() * (p - q)).sum(dim=-1)
    torch.testing.assert_close(found.divergences, divergences, rtol=2e-7, atol=1e-9)
    torch.testing.assert_close(found.losses, -q.gather(-1, targets[:, None])[:, 0], **exact)
    torch.testing.assert_close(predictions.losses, -p.gather(-1, targets[:, None])[:, 0], **exact)


def test_impossible_tokens_add_nothing_to_a_divergence() -> None:
    first, second = torch.tensor([[0.0, 1.0, -torch.inf]]), torch.tensor([[1.0, 0.0, -torch.inf]])
    expected = Predictions(first[:, :2], torch.tensor([0])).compared(second[:, :2])
    assert Predictions(first, torch.tensor([0])).compared(second) == expected


def test_the_distance_of_nearly_equal_rows_matches_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(7, 1001, generator=generator)
    q = p * (1 + 1e-5 * torch.randn(7, 1001, generator=generator))
    torch.testing.assert_close(
        jensen_shannon(p, q).double(), jensen_shannon(p.double(), q.double()), rtol=1e-5, atol=0
    )
    assert jensen_shannon(p, p).max() == 0


def test_a_change_is_relative_to_each_vector() -> None:
    before = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    after = torch.tensor([[3.0, 4.0], [0.0, 3.0]])
    assert relative_changes(before, after).mean() == 0.25


@pytest.mark.parametrize("seed", range(3))
def test_rank_correlation_matches_scipy(seed: int) -> None:
    a, b = torch.randint(0, 6, (2, 17), generator=torch.Generator().manual_seed(seed)).double()
    b += a
    assert float(rank_correlation(a, b)) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert float(rank_correlation(a, -(a**3))) == pytest.approx(-1)
    assert rank_correlation(a, torch.ones_like(a)).isnan()
