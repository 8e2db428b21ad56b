"""Attention with gradients: output against the reference, gradients against finite differences."""

from dataclasses import replace

import pytest
import torch

from attncli.core import engines as differentiable
from attncli.core import reference
from attncli.core.layer import AttentionLayer, ScoreRules, Visibility, Wanted

KEY_MASK = torch.tensor([[False, True, True, True, True], [True] * 5])
RULES = {
    "plain": ScoreRules(),
    "softcap": ScoreRules(softcap=1.5, temperature=0.7),
    "sink": ScoreRules(sink=torch.tensor([[0.3, -1.0, 2.0, 0.0, 0.5, 1.0]], dtype=torch.float64)),
    "bias": ScoreRules(bias=torch.arange(30, dtype=torch.float64).view(1, 6, 1, 5) / 7),
}


def checked_layer(rules: ScoreRules) -> AttentionLayer:
    generator = torch.Generator().manual_seed(1)
    sizes = {"query": (2, 6, 5, 7), "key": (2, 3, 5, 7), "value": (2, 3, 5, 4)}
    vectors = {
        name: torch.randn(size, generator=generator, dtype=torch.float64) for name, size in sizes.items()
    }
    visibility = Visibility(5, 5, causal=True, window=3, key_mask=KEY_MASK)
    return AttentionLayer(**vectors, visibility=visibility, scale=0.4, rules=rules)


@pytest.mark.parametrize("rules", RULES)
def test_the_output_matches_the_definition(rules: str) -> None:
    """The first query of the first text sees no key."""
    layer = checked_layer(RULES[rules])
    expected = reference.attend(layer, Wanted(output=True)).output
    torch.testing.assert_close(differentiable.attend_with_gradients(layer), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rules", RULES)
def test_gradients_match_finite_differences(rules: str) -> None:
    layer = checked_layer(RULES[rules])

    def output(query: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return differentiable.attend_with_gradients(replace(layer, query=query, value=value))

    vectors = (layer.query.requires_grad_(), layer.value.requires_grad_())
    assert torch.autograd.gradcheck(output, vectors, fast_mode=True)
