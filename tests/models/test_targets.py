"""Targets, against the logits of a layer."""

import pytest
import torch

from attncli.models.targets import Target


@torch.no_grad()
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("against", [None, 2])
def test_the_direction_of_a_target_gives_its_logit(against: int | None, has_bias: bool) -> None:
    torch.manual_seed(3)
    unembedding = torch.nn.Linear(5, 7, bias=has_bias).double()
    read, target = torch.randn(5, dtype=torch.float64), Target([4], against)
    logits = unembedding(read)
    expected = float(logits[4]) - (0.0 if against is None else float(logits[against]))
    vector, bias = target.direction(unembedding)
    assert target.logit(logits) == pytest.approx(expected, abs=1e-12)
    assert float(read @ vector) + bias == pytest.approx(expected, abs=1e-12)
