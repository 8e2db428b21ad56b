"""Layers by hand, put together at random: what is heard of each are its own weights."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from attncli.core.engines import attend
from attncli.core.layer import AttentionLayer, Wanted
from attncli.features.record.listening.heard_calls import HeardCall
from attncli.features.record.listening.listener import Listener
from tests.conftest import some_seldom
from tests.features.record.handmade_layers import HandmadeLayer, handmade_layer

NUM_LAYERS, A_TEST = 360, 30
PRODUCT, ALONE, NOTHING = "with its product", "the weights alone", "nothing"


def true_weights(layer: HandmadeLayer, weights: Tensor, mixed: Tensor) -> Tensor:
    """Mixed weights where they are shares still, and dropout in place has left them; else those before."""
    is_lost = layer.training and layer.ways.after == "dropout in place"
    are_shares = bool((mixed >= 0).all()) and bool((mixed.sum(-1) <= 1.01).all())
    return mixed if are_shares and not is_lost else weights


def check(layer: HandmadeLayer, call: HeardCall, weights: Tensor, output: Tensor) -> str:
    """How an attention was heard, once that was right."""
    atol = 2e-2 if layer.ways.precision == "bfloat16" else 1e-5
    computed = attend(call.attention, Wanted(weights=True)).weights
    assert computed is not None and call.weights is not None
    exact = weights.float()
    if not call.has_heads:
        assert layer.ways.number == "none"
        exact = exact.flatten(0, 1)[None]
        if not torch.allclose(call.weights.float(), exact, rtol=0, atol=atol):
            exact = weights.float().transpose(0, 1).flatten(0, 1)[None]
    for heard in (computed, call.weights):
        torch.testing.assert_close(heard.float(), exact, rtol=0, atol=atol)
    if not isinstance(call.attention, AttentionLayer):
        return ALONE
    is_plain = layer.ways.mix_after == "none" and not (layer.training and "dropout" in layer.ways.after)
    if is_plain and call.has_heads:
        again = attend(call.attention, Wanted(output=True)).output
        assert again is not None
        torch.testing.assert_close(again.float(), output.float(), rtol=0, atol=10 * atol)
    return PRODUCT


def heard_of(seed: int) -> str:
    """How the layer of a seed was heard, once that was right and its output what it is otherwise."""
    layer, call = handmade_layer(seed)
    plain = call()
    heard: list[HeardCall] = []
    listener = Listener(heard.append, calls="all")
    with listener.listening():
        assert torch.equal(call(), plain)
    if not heard:
        return NOTHING
    assert len(heard) == len(layer.weights)
    is_mixed, is_in_place = layer.ways.mix_after != "none", layer.ways.after == "dropout in place"
    if layer.ways.mix_after != "einsum of any numbers" and not (is_mixed and is_in_place):
        assert not listener.notes()
    return "; ".join(
        sorted(
            {
                check(layer, each, true_weights(layer, weights, mixed), output)
                for each, weights, mixed, output in zip(
                    heard, layer.weights, layer.mixed, layer.outputs, strict=True
                )
            }
        )
    )


@pytest.mark.parametrize(
    "first", some_seldom(range(0, NUM_LAYERS, A_TEST), range(NUM_LAYERS // 2, NUM_LAYERS))
)
def test_handmade_layers_are_recorded_exactly(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + A_TEST):
        try:
            how = heard_of(seed)
        except AssertionError as error:
            layer, _ = handmade_layer(seed)
            raise AssertionError(f"layer {seed}, {layer.sizes}, {layer.ways}: {error}") from error
        counts[how] += 1
        if how == NOTHING:  # a sum over a single key
            layer, _ = handmade_layer(seed)
            assert layer.sizes.m == 1 and "mulsum" in (layer.ways.product, layer.ways.value)
    assert counts[PRODUCT] > A_TEST / 5
