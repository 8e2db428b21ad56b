"""A layer's scores, weights and output, any part of them, against one explicit formula."""

from dataclasses import replace

import pytest
import torch
from attncli.mechanisms.attention_layer import AttentionLayer
from attncli.mechanisms.visibility import Visibility
from torch import Tensor

HEADS, KV_HEADS, QUERIES, DIM, VALUE_DIM = 6, 2, 263, 5, 7


def layer(seed: int = 0, num_keys: int = QUERIES, **settings: object) -> AttentionLayer:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 2

    made = AttentionLayer(
        module="h.0.attn",
        layer=0,
        kind="self",
        query=draw(HEADS, QUERIES, DIM),
        key=draw(KV_HEADS, num_keys, DIM),
        value=draw(KV_HEADS, num_keys, VALUE_DIM),
        visibility=Visibility(QUERIES, num_keys),
        scale=0.3,
    )
    return replace(made, **settings)  # type: ignore[arg-type]


CASES = {
    "full": {},
    "causal": {"visibility": Visibility(QUERIES, QUERIES, causal=True)},
    "window": {"visibility": Visibility(QUERIES, QUERIES, causal=True, window=11)},
    "both ways": {"visibility": Visibility(QUERIES, QUERIES, window=3)},
    "padding": {"visibility": Visibility(QUERIES, QUERIES, key_mask=torch.arange(QUERIES) > 4)},
    "rule": {"visibility": Visibility(QUERIES, QUERIES, rule=lambda i, j: (i + j) % 3 > 0)},
    "softcap": {"softcap": 2.0, "visibility": Visibility(QUERIES, QUERIES, causal=True)},
    "sink": {"sink": torch.linspace(-1, 3, HEADS, dtype=torch.float64)},
    "bias": {"bias": torch.linspace(-3, 3, HEADS * QUERIES * QUERIES).double().view(HEADS, QUERIES, QUERIES)},
    "bias of keys": {"bias": torch.linspace(-3, 3, QUERIES).double().view(1, 1, QUERIES)},
    "cross": {"num_keys": 37},
}


def explicit(layer: AttentionLayer) -> tuple[Tensor, Tensor]:
    """Weights and output from whole matrices, key heads repeated by hand."""
    index = [head // (HEADS // KV_HEADS) for head in range(HEADS)]
    scores = torch.einsum("hqd,hkd->hqk", layer.query, layer.key[index]) * layer.scale
    if layer.softcap is not None:
        scores = layer.softcap * torch.tanh(scores / layer.softcap)
    if layer.bias is not None:
        scores = scores + layer.bias
    for i in range(scores.shape[1]):
        visible = layer.visibility(torch.tensor(i), torch.arange(scores.shape[2]))
        scores[:, i, ~visible] = -torch.inf
    if layer.sink is not None:
        sink = layer.sink.view(-1, 1, 1).expand(-1, scores.shape[1], 1)
        weights = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
    else:
        weights = scores.softmax(-1)
    return weights, torch.einsum("hqk,hkd->hqd", weights, layer.value[index])


@pytest.mark.parametrize("case", CASES)
def test_weights_and_output(case: str) -> None:
    made = layer(**CASES[case])  # type: ignore[arg-type]
    weights, output = explicit(made)
    torch.testing.assert_close(made.weights(torch.arange(QUERIES)), weights)
    torch.testing.assert_close(made.output(), output)
    queries, keys = torch.tensor([0, 5, 262, 7]), torch.tensor([3, 5, 36, 0])
    scores = made.scores(queries, keys)
    everything = made.scores(torch.arange(QUERIES), torch.arange(made.key.shape[1]))
    torch.testing.assert_close(scores, everything[:, queries][:, :, keys])
    torch.testing.assert_close(made.scores_of_pairs(queries, keys), scores.diagonal(dim1=1, dim2=2))


def test_a_query_that_sees_nothing_has_no_weight() -> None:
    made = layer(visibility=Visibility(QUERIES, QUERIES, causal=True, key_mask=torch.arange(QUERIES) > 4))
    assert made.weights(torch.arange(5)).sum() == 0
    assert made.output()[:, :5].abs().sum() == 0
