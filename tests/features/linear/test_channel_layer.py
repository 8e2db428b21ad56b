"""Mean matrices of channels with different decays, against the definition in float64."""

import pytest
import torch
from torch import Tensor

from attncli.features.linear import channel_layer
from attncli.features.linear.channel_layer import ChannelCache, ChannelLayer
from tests.conftest import in_turn

TEXTS, HEADS, TOKENS, CHANNELS, STATES = 1, 2, 83, 5, 3


def layer(fastest: float) -> ChannelLayer:
    """Steps and decays over several orders of magnitude, up to exp(-fastest) for each token."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(TEXTS, HEADS, TOKENS, *shape, generator=generator)

    step = (normal(CHANNELS) - 2).exp()
    decay = -torch.logspace(-3, 0, HEADS * CHANNELS * STATES).reshape(HEADS, CHANNELS, STATES) * fastest
    return ChannelLayer(step, decay, normal(STATES), normal(STATES), torch.rand(HEADS, CHANNELS))


def by_definition(layer: ChannelLayer) -> Tensor:
    """w_ij = mean_d [ sum_n C_in exp(A_dn sum_{j < k <= i} s_dk) B_jn s_dj + D_d 1(i = j) ], in loops."""
    step, write, read = (part.double()[0] for part in (layer.step, layer.write, layer.read))
    weights = torch.zeros(HEADS, TOKENS, TOKENS, dtype=torch.float64)
    for head in range(HEADS):
        decay, skip = layer.decay[head].double(), layer.skip[head].double()
        for i in range(TOKENS):
            for j in range(i + 1):
                passed = step[head, j + 1 : i + 1].sum(dim=0).unsqueeze(-1)
                each = read[head, i] * (decay * passed).exp() * write[head, j] * step[head, j].unsqueeze(-1)
                weights[head, i, j] = (each.sum(dim=-1) + (skip if i == j else 0)).mean()
    return weights


@pytest.mark.parametrize(("fastest", "parts"), in_turn([0.01, 3.0, 300.0], [1, 2]))
def test_weights_match_the_definition(fastest: float, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if most states have forgotten the keys of a part and are left out."""
    monkeypatch.setattr(channel_layer, "CHUNK", 17)
    monkeypatch.setattr(channel_layer, "MOST_ENTRIES", 120 * parts)
    tested = layer(fastest)
    expected = by_definition(tested)
    assert (tested.weights()[0] - expected).abs().max() <= 1e-6 * expected.abs().max()
    assert (tested.last_rows() - expected[:, -1]).abs().max() <= 1e-6 * expected.abs().max()


def test_rows_of_a_growing_text_match_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, cache = layer(1.0), ChannelCache()
    expected, start = by_definition(tested), 0
    for stop in (1, 64, 65, TOKENS):
        parts = (part[:, :, start:stop] for part in (tested.step, tested.write, tested.read))
        step, write, read = parts
        row = cache.add(ChannelLayer(step, tested.decay, write, read, tested.skip))
        assert (row - expected[:, stop - 1, :stop]).abs().max() <= 1e-6 * expected.abs().max()
        start = stop
