"""Against torch's own losses and scipy's rank correlation."""

import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from attncli.core.formulas import mean_divergence, rank_correlation, relative_changes, token_losses


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_loss_and_divergence_are_torchs(logits: torch.Tensor) -> None:
    p, q = logits.log_softmax(dim=-1)
    targets = torch.tensor([6, 0, 3, 3, 1])
    torch.testing.assert_close(token_losses(p, targets).mean(), F.cross_entropy(logits[0], targets))
    expected = F.kl_div(q, p, log_target=True, reduction="batchmean")
    torch.testing.assert_close(mean_divergence(p, q), expected)
    assert mean_divergence(p, p) == 0


def test_a_change_is_relative_to_each_vector() -> None:
    before = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    after = torch.tensor([[3.0, 4.0], [0.0, 3.0]])
    assert relative_changes(before, after).mean() == 0.25


@pytest.mark.parametrize("seed", range(3))
def test_ranks_are_scipys_with_and_without_ties(seed: int) -> None:
    a, b = torch.randint(0, 6, (2, 17), generator=torch.Generator().manual_seed(seed)).double()
    b += a
    assert float(rank_correlation(a, b)) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert float(rank_correlation(a, -(a**3))) == pytest.approx(-1)
    assert rank_correlation(a, torch.ones_like(a)).isnan()
