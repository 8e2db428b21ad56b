"""Normalisation against torch's modules, and by hand where the convention differs."""

import pytest
import torch

from attncli.core.mechanisms import batch_norm, layer_norm, rms_norm


@pytest.fixture
def data() -> torch.Tensor:
    return torch.randn(7, 5, generator=torch.Generator().manual_seed(7)) * 3 + 2


@pytest.mark.parametrize(("eps", "momentum"), [(1e-5, 0.1), (0.1, 0.7)])
def test_biased_batch_norm_matches_torch(data: torch.Tensor, eps: float, momentum: float) -> None:
    module = torch.nn.BatchNorm1d(5, eps=eps, momentum=momentum)
    expected = module(data)
    ours = batch_norm(data, eps=eps, momentum=momentum, unbiased=False)
    torch.testing.assert_close(ours.output, expected)
    assert module.running_mean is not None and module.running_var is not None
    torch.testing.assert_close(ours.running_mean, module.running_mean)
    torch.testing.assert_close(ours.running_variance, module.running_var)
    torch.testing.assert_close(ours.eval_output, module.eval()(data))


@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_biased_layer_norm_and_rms_norm_match_torch(data: torch.Tensor, eps: float) -> None:
    torch.testing.assert_close(
        layer_norm(data, eps=eps, unbiased=False), torch.nn.LayerNorm(5, eps=eps)(data)
    )
    torch.testing.assert_close(rms_norm(data, eps=eps), torch.nn.RMSNorm(5, eps=eps)(data))


def test_unbiased_norms_have_unit_unbiased_deviation(data: torch.Tensor) -> None:
    by_feature = batch_norm(data, eps=1e-12, momentum=0.1, unbiased=True).output
    by_example = layer_norm(data, eps=1e-12, unbiased=True)
    torch.testing.assert_close(by_feature.std(dim=0), torch.ones(5))
    torch.testing.assert_close(by_example.std(dim=1), torch.ones(7))


def test_equal_numbers_become_zeros() -> None:
    data = torch.full((3, 5), 4.0)
    assert torch.equal(layer_norm(data, eps=1e-5, unbiased=True), torch.zeros(3, 5))
    assert torch.equal(batch_norm(data, eps=1e-5, momentum=0.1, unbiased=True).output, torch.zeros(3, 5))
