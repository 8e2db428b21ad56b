"""Each architecture's weights against transformers' own eager attention."""

import pytest
import torch

from attncli.errors import UserError
from attncli.inputs.capture import layer_kind, layer_number
from attncli.mechanisms.attention_layer import AttentionLayer
from tests.eager import captured_layers, eager_weights, whole_weights
from tools.tiny_architectures import ARCHITECTURES, random_inputs

WITH_WEIGHTS = [name for name in ARCHITECTURES if name != "Mamba"]
BY_EAGER = {"BLOOM", "DeBERTa-v2", "BigBird"}


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_weights_equal_eager_attention(name: str) -> None:
    model = ARCHITECTURES[name].build()
    inputs = random_inputs(model)
    how, layers = captured_layers(model, inputs)
    expected = eager_weights(model, inputs)

    assert how == ("eager" if name in BY_EAGER else "interface")
    assert layers.keys() == expected.keys()
    for place, weights in expected.items():
        assert weights.amax() > 0.1, "the oracle is not nearly uniform"
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in WITH_WEIGHTS if name not in BY_EAGER])
def test_the_model_computes_what_it_would_have(name: str) -> None:
    """The output of the model under capture, which the last layers' inputs depend on."""
    model = ARCHITECTURES[name].build()
    inputs = random_inputs(model)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**inputs).last_hidden_state
    outputs = []
    hook = model.register_forward_hook(
        lambda _model, _inputs, output: outputs.append(output.last_hidden_state)
    )
    captured_layers(model, inputs)
    hook.remove()
    torch.testing.assert_close(outputs[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["Mistral", "ModernBERT", "Gemma 2", "GPT-OSS"])
def test_sliding_windows_are_recognised(name: str) -> None:
    _, layers = captured_layers(*_model_and_inputs(name))
    windows = {layer.visibility.window for layer in layers.values() if isinstance(layer, AttentionLayer)}
    assert windows - {None} == {4 if name == "ModernBERT" else 5}
    assert all(
        layer.visibility.rule is None for layer in layers.values() if isinstance(layer, AttentionLayer)
    )


def _model_and_inputs(name: str) -> tuple[object, dict[str, torch.Tensor]]:
    model = ARCHITECTURES[name].build()
    return model, random_inputs(model)


@pytest.mark.parametrize("name", ["BERT", "Llama", "Mistral", "BART", "ModernBERT"])
def test_padding_is_hidden(name: str) -> None:
    model = ARCHITECTURES[name].build()
    inputs = random_inputs(model)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, -3:] = 0
    inputs["attention_mask"] = mask
    _, layers = captured_layers(model, inputs)
    expected = eager_weights(model, inputs)
    for place, weights in expected.items():
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)
        if weights.shape[-1] == mask.shape[1]:
            assert whole_weights(layers[place])[:, :5, -3:].sum() == 0


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UserError, match="mamba gives no attention weights"):
        captured_layers(*_model_and_inputs("Mamba"))


def test_one_layer_at_a_time_and_without_a_whole_mask() -> None:
    """Nothing that is handed over has an entry a query and key."""
    _, layers = captured_layers(*_model_and_inputs("Mistral"))
    for layer in layers.values():
        assert isinstance(layer, AttentionLayer)
        assert layer.bias is None and layer.visibility.rule is None
        assert layer.key.shape[0] == 2 and layer.query.shape[0] == 4, "key and value stay unexpanded"


@pytest.mark.parametrize(
    ("module", "number", "kind"),
    [
        ("encoder.layer.0.attention.self", 0, "self"),
        ("decoder.block.11.layer.1.EncDecAttention", 11, "cross"),
        ("decoder.layers.3.encoder_attn", 3, "cross"),
        ("encoder.layers.2.self_attn", 2, "self"),
        ("h.7.crossattention", 7, "cross"),
        ("transformer.attention", 0, "self"),
        ("model2.layers.5.attn", 5, "self"),
    ],
)
def test_modules_are_named(module: str, number: int, kind: str) -> None:
    assert (layer_number(module), layer_kind(module)) == (number, kind)
