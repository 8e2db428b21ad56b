"""Statistics against scipy, autograd and sums written out."""

import numpy as np
import pytest
import scipy.stats
import torch

from attncli.mechanisms.masks import causal_mask, full_mask
from attncli.statistics import ROW_STATISTICS
from attncli.statistics.concentration import top_keys
from attncli.statistics.moments import moments
from attncli.statistics.saturation import softmax_gradient_norm
from attncli.statistics.sinks import received_mass


def weights_of(*shape: int, seed: int = 0, visible: torch.Tensor | None = None) -> torch.Tensor:
    scores = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (scores if visible is None else scores.masked_fill(~visible, -torch.inf)).softmax(dim=-1)


NAIVE = {
    "entropy": lambda p, i, seen: scipy.stats.entropy(p),
    "normalized_entropy": lambda p, i, seen: scipy.stats.entropy(p) / np.log(seen) if seen > 1 else np.nan,
    "max_weight": lambda p, i, seen: max(p),
    "sink_mass": lambda p, i, seen: p[0],
    "distance": lambda p, i, seen: sum(p[j] * abs(i - j) for j in range(len(p))),
    "participation": lambda p, i, seen: 1 / sum(x * x for x in p),
}


@pytest.mark.parametrize("name", ROW_STATISTICS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", [(5, 5), (3, 7, 7), (1, 1), (2, 3, 5, 5)])
def test_every_row_statistic_is_its_formula(name: str, causal: bool, shape: tuple[int, ...]) -> None:
    visible = (causal_mask if causal else full_mask)(shape[-2], shape[-1])
    weights = weights_of(*shape, visible=visible)
    result = ROW_STATISTICS[name](weights, visible).reshape(-1, shape[-2])
    for row, matrix in zip(result, weights.reshape(-1, *shape[-2:]), strict=True):
        expected = [NAIVE[name](p.numpy(), i, int(visible[i].sum())) for i, p in enumerate(matrix)]
        np.testing.assert_allclose(row, expected, rtol=1e-12, atol=1e-12)


def test_uniform_and_one_hot_rows() -> None:
    visible = full_mask(1, 7)
    uniform, one_hot = torch.full((1, 7), 1 / 7, dtype=torch.float64), torch.eye(7, dtype=torch.float64)[2:3]
    figures = {
        name: (f(uniform, visible).item(), f(one_hot, visible).item()) for name, f in ROW_STATISTICS.items()
    }
    assert figures["entropy"] == pytest.approx((np.log(7), 0))
    assert figures["normalized_entropy"] == pytest.approx((1, 0))
    assert figures["participation"] == pytest.approx((7, 1))


def test_top_keys_name_the_earlier_of_equals_first_and_nothing_hidden() -> None:
    weights = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0.1, 0.2, 0.3, 0.4]])
    keys, values = top_keys(weights, causal_mask(4, 4), 3)
    assert keys.tolist() == [[0, -1, -1], [0, 1, -1], [1, 2, 0], [3, 2, 1]]
    assert values.nan_to_num(9).tolist()[0] == [1, 9, 9]
    assert top_keys(weights, causal_mask(4, 4), 9)[0].shape == (4, 4)


def test_received_mass_is_the_column_sum() -> None:
    weights = weights_of(3, 5)
    np.testing.assert_allclose(received_mass(weights), weights.numpy().sum(axis=0))


def test_moments_are_scipys() -> None:
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
def test_gradient_norm_is_that_of_autograds_jacobian(factor: float) -> None:
    logits = factor * torch.tensor([0.1, -0.2, 0.3, -0.2, 0.5], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(dim=-1), logits)
    ours = softmax_gradient_norm(logits.softmax(dim=-1)).item()
    assert ours == pytest.approx(torch.linalg.norm(jacobian).item(), rel=1e-9)
