"""When the interface will not do, eager attention of a model loaded for it; what that gives is checked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attncli.errors import UserError
from attncli.inputs.attention_interface import NAME
from attncli.inputs.capture import CapturedLayer, capture
from attncli.inputs.captured_layers import Numbering, TokenCounts, layer_stack
from attncli.inputs.loaded_model import LoadedModel
from tests.eager import captured_layers, eager_weights, whole_weights
from tools.tiny_architectures import ARCHITECTURES, Architecture, loaded, random_inputs

TIED = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 61}
DIFF_LLAMA = Architecture("DiffLlamaModel", {**TIED, "intermediate_size": 40, "num_key_value_heads": 2})


def inputs_and_loaded(name: str) -> tuple[dict[str, Tensor], LoadedModel]:
    model = ARCHITECTURES[name].build()
    return random_inputs(model), loaded(model)


@pytest.mark.parametrize("argument", ["sinks", "indices", "block_indices", "new_in_transformers_6"])
def test_an_argument_that_is_not_known_leads_to_eager_attention(argument: str) -> None:
    inputs, source = inputs_and_loaded("Llama")
    assert capture(source, inputs | {argument: torch.ones(3)}, lambda _: None) == "eager"


@pytest.mark.parametrize("more", [{"position_ids": torch.arange(13).unsqueeze(0)}, {"sinks": None}])
def test_arguments_that_change_no_weight_are_ignored(more: dict[str, Any]) -> None:
    inputs, source = inputs_and_loaded("Llama")
    assert capture(source, inputs | more, lambda _: None) == "interface"


def test_two_calls_with_one_query_are_no_two_layers() -> None:
    model = DIFF_LLAMA.build()
    inputs = random_inputs(model)
    how, layers = captured_layers(model, inputs)
    assert how == "eager" and [layer.layer for layer in layers.values()] == [0, 1]
    for place, weights in eager_weights(model, inputs).items():
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)


def test_layers_come_anew_where_the_interface_fails_halfway() -> None:
    inputs, source = inputs_and_loaded("BERT")

    def fail(module: Any, _: object) -> None:
        if source.model.config._attn_implementation == NAME:
            raise AttributeError("'Visibility' object has no attribute 'dtype'")

    source.model.get_submodule("encoder.layer.1").register_forward_pre_hook(fail)
    layers: list[CapturedLayer] = []
    seen: list[int] = []

    def take(layer: CapturedLayer) -> None:
        seen.append(layer.layer)
        layers.append(layer)

    assert capture(source, inputs, take, layers.clear) == "eager"
    assert seen == [0, 0, 1] and [layer.layer for layer in layers] == [0, 1]
    assert source.is_eager
    layers.clear()
    assert capture(source, inputs, layers.append) == "eager" and len(layers) == 2


def test_a_model_that_needs_more_than_a_text_is_refused() -> None:
    _, source = inputs_and_loaded("ViT")
    with pytest.raises(UserError, match=r"model: vit cannot run on text alone: \w+Error: "):
        capture(source, {"input_ids": torch.arange(5).unsqueeze(0)}, lambda _: None)


def test_an_error_of_the_consumer_is_its_own() -> None:
    inputs, source = inputs_and_loaded("BERT")

    def fail(_: CapturedLayer) -> None:
        raise KeyError("our own")

    with pytest.raises(KeyError, match="our own"):
        capture(source, inputs, fail)


BROKEN: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "scores": (lambda p: p - 0.5, "returns negative weights"),
    "unnormalised": (lambda p: 2 * p, "rows that sum to more than 1"),
    "not finite": (lambda p: p * torch.nan, "returns negative weights"),
    "window": (lambda p: p[..., :5], "has 13 queries and 5 keys where the texts have 13 and 13 tokens"),
    "flat": (lambda p: p[:, 0], "attentions holds no weights of text, head, query and key"),
    "future": (lambda p: p.flip(-1), "is causal, and returns weights that look into the future"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_eager_attention_gives_is_checked(kind: str) -> None:
    inputs, source = inputs_and_loaded("Llama")
    source.make_eager()
    change, message = BROKEN[kind]
    source.model.get_submodule("layers.1.self_attn").register_forward_hook(
        lambda _module, _inputs, output: (output[0], change(output[1]))
    )
    with pytest.raises(UserError, match=f"model: llama cannot be shown: .*{message}") as caught:
        capture(source, inputs, lambda _: None)
    assert kind == "flat" or "layers.1.self_attn" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_eager_attention_is_loaded_once_for_many_texts() -> None:
    inputs, source = inputs_and_loaded("Llama")
    models = []
    for _ in range(3):
        assert capture(source, inputs | {"sinks": torch.ones(3)}, lambda _: None) == "eager"
        models.append(source.model)
    assert models[0] is models[1] is models[2]


def test_a_model_that_has_changed_itself_is_loaded_anew() -> None:
    inputs, source = inputs_and_loaded("BLOOM")
    assert capture(source, inputs, lambda _: None) == "eager"
    first = source.model
    capture(source, inputs, lambda _: None)
    assert source.model is first, "kept for the next texts"
    first.get_submodule("h.0.self_attention").attention_type = "original_full"  # as BigBird does
    capture(source, inputs, lambda _: None)
    assert source.model is not first


@pytest.mark.parametrize(
    ("module", "stack"),
    [
        ("encoder.block.0.layer.0.SelfAttention", "encoder"),
        ("decoder.layers.3.encoder_attn", "decoder"),
        ("language_model.encoder.layers.0.self_attn", "encoder"),
        ("text_encoder.layers.1.self_attn", "encoder"),
        ("text_decoder.layers.1.cross_attention", "decoder"),
        ("h.0.attn", ""),
    ],
)
def test_a_stack_is_that_of_the_module(module: str, stack: str) -> None:
    assert layer_stack(module) == stack


def test_stacks_that_give_nothing_are_missed() -> None:
    _, layers = captured_layers(model := ARCHITECTURES["BART"].build(), inputs := random_inputs(model))
    numbering = Numbering(has_two_stacks=True, counts=TokenCounts.of_inputs(inputs))
    for layer in [layer for layer in layers.values() if layer.layer == 0]:
        assert numbering.lacks_a_stack
        numbering.layer(layer.module, layer.kind, layer.attention)
    assert not numbering.lacks_a_stack
