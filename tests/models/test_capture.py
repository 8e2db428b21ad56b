"""Each architecture's weights against transformers' eager attention."""

import pytest
import torch

from attncli.core import row_tiles as tile
from attncli.core.layer import AttentionLayer
from attncli.errors import UserError
from attncli.models.architectures import layer_kind, layer_number
from attncli.models.layers import CapturedLayer
from tests.conftest import in_pairs, in_turn
from tests.eager import (
    captured_layers,
    eager_weights,
    eager_weights_of_texts,
    whole_weights,
    whole_weights_of_texts,
)
from tools.tiny_architectures import ARCHITECTURES, HIDDEN, VOCABULARY, Architecture, random_inputs

WITH_WEIGHTS = [name for name in ARCHITECTURES if name != "Mamba"]
BY_EAGER = {"BLOOM", "DeBERTa-v2", "BigBird"}
ALBERT = Architecture(
    "AlbertModel", {**HIDDEN, "num_hidden_layers": 3, "embedding_size": 16, "intermediate_size": 40}
)


CASES = [
    (torch.float32, 1e-5, False),
    (torch.float64, 1e-6, True),
    (torch.float32, 1e-5, True),
    (torch.float64, 1e-6, False),
]


@pytest.mark.parametrize(("name", "dtype", "tolerance", "with_output"), in_turn(WITH_WEIGHTS, CASES))
def test_weights_and_outputs_equal_eager_attention(
    name: str, dtype: torch.dtype, tolerance: float, with_output: bool
) -> None:
    """In float32, or in float64 except for the softmax, which some architectures compute in float32.

    The model's output during capture depends on the inputs of the last layers.
    """
    model = ARCHITECTURES[name].build().to(dtype)
    inputs = random_inputs(model)
    inputs = {key: part.to(dtype) if part.is_floating_point() else part for key, part in inputs.items()}
    outputs = []
    hook = model.register_forward_hook(
        lambda _model, _inputs, output: outputs.append(output.last_hidden_state)
    )
    how, layers = captured_layers(model, inputs, with_output=with_output)
    hook.remove()
    expected = eager_weights(model, inputs)

    assert how == ("eager" if name in BY_EAGER else "interface")
    assert layers.keys() == expected.keys()
    for place, weights in expected.items():
        assert weights.amax() > 0.1, "the oracle is not nearly uniform"
        ours = whole_weights(layers[place])
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, weights, rtol=0, atol=tolerance, check_dtype=False)
    if name not in BY_EAGER:
        with torch.no_grad():
            output = model(**inputs).last_hidden_state
        torch.testing.assert_close(outputs[-1], output, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["Mistral", "ModernBERT", "Gemma 2", "GPT-OSS"])
def test_sliding_windows_are_recognised(name: str) -> None:
    _, layers = captured_layers(*_model_and_inputs(name))
    seeing = [attention_of(layer).visibility for layer in layers.values()]
    assert {visibility.window for visibility in seeing} - {None} == {4 if name == "ModernBERT" else 5}
    assert all(visibility.rule is None for visibility in seeing)


def attention_of(layer: CapturedLayer) -> AttentionLayer:
    assert isinstance(layer.attention, AttentionLayer)
    return layer.attention


def _model_and_inputs(name: str) -> tuple[object, dict[str, torch.Tensor]]:
    model = ARCHITECTURES[name].build()
    return model, random_inputs(model)


def batch_of(name: str) -> dict[str, torch.Tensor]:
    """Three texts of one length (or images), and three shorter ones for a decoder beside an encoder."""
    model = ARCHITECTURES[name].build()
    generator = torch.Generator().manual_seed(11)
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(3, 3, 12, 12, generator=generator)}
    tokens = torch.randint(3, VOCABULARY, (3, 13), generator=generator)
    return {
        "input_ids": tokens,
        **({"decoder_input_ids": tokens.flip(1)[:, :7]} if model.config.is_encoder_decoder else {}),
    }


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_weights_are_the_same_in_a_batch_and_alone(name: str) -> None:
    model = ARCHITECTURES[name].build()
    inputs = batch_of(name)
    how, together = captured_layers(model, inputs)
    expected = eager_weights_of_texts(model, inputs)
    assert how == ("eager" if name in BY_EAGER else "interface") and together.keys() == expected.keys()
    for text in range(3):
        own = {key: tensor[text : text + 1] for key, tensor in inputs.items()}
        _, alone = captured_layers(model, own)
        assert alone.keys() == together.keys()
        for place, layer in together.items():
            weights = whole_weights_of_texts(layer)
            assert weights.shape == expected[place].shape and len(weights) == 3
            torch.testing.assert_close(weights[text], whole_weights(alone[place]), rtol=0, atol=1e-5)
            torch.testing.assert_close(weights[text], expected[place][text], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "side"), in_turn([name for name in WITH_WEIGHTS if name != "ViT"], ["right", "left"])
)
def test_a_padded_batch_has_the_weights_of_eager_attention(name: str, side: str) -> None:
    """Texts of 13, 9 and 4 tokens.

    For padding that sees no key, the output is 0 here and the mean of all values in eager attention: later
    layers differ in these rows, and only there.
    """
    model = ARCHITECTURES[name].build()
    inputs = batch_of(name)
    masks = {"": padding(13, (13, 9, 4), side)}
    inputs["attention_mask"] = masks["encoder"] = masks[""]
    if "decoder_input_ids" in inputs:
        inputs["decoder_attention_mask"] = masks["decoder"] = padding(7, (7, 2, 5), side)
    how, layers = captured_layers(model, inputs)
    expected = eager_weights_of_texts(model, inputs)
    assert how == ("eager" if name in BY_EAGER else "interface") and layers.keys() == expected.keys()
    weights = {place: whole_weights_of_texts(layer) for place, layer in layers.items()}
    seeing = {stack: torch.ones_like(mask, dtype=torch.bool) for stack, mask in masks.items()}
    for place, got in weights.items():
        layer = layers[place]
        seeing[layer.stack] &= (got > 0).any(dim=-1).any(dim=1)
        is_padding = masks["encoder" if layer.kind == "cross" else layer.stack] == 0
        if name not in BY_EAGER:
            assert (got[is_padding.view(3, 1, 1, -1).expand_as(got)] == 0).all()
    for place, got in weights.items():
        rows = seeing[layers[place].stack]
        assert rows[masks[layers[place].stack] == 1].all(), "only padding may see nothing"
        for text in range(3):
            ours, theirs = (one[text][:, rows[text]] for one in (got, expected[place]))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def padding(num_tokens: int, lengths: tuple[int, ...], side: str) -> torch.Tensor:
    """1 for the tokens of a text, 0 for padding."""
    mask = (torch.arange(num_tokens) < torch.tensor(lengths).unsqueeze(1)).long()
    return mask if side == "right" else mask.flip(1)


@pytest.mark.parametrize(
    ("with_numbers", "num_heads", "num_texts", "name"),
    in_pairs([False, True], [1, 4], [1, 3], ["BERT", "Llama"]),
)
def test_matrix_masks_hide_the_same_keys_as_in_eager_attention(
    name: str, num_texts: int, num_heads: int, with_numbers: bool
) -> None:
    """For all texts or each text, for all heads or each head, with and without numbers to add."""
    model = ARCHITECTURES[name].build()
    generator = torch.Generator().manual_seed(num_heads)
    seen = torch.rand(num_texts, num_heads, 13, 13, generator=generator) < 0.6
    seen |= torch.eye(13, dtype=torch.bool)
    added = 2.0 * with_numbers * torch.randn(seen.shape, generator=generator)
    mask = added.masked_fill(~seen, torch.finfo(torch.float32).min)
    inputs = {**batch_of(name), "attention_mask": mask.expand(3, -1, -1, -1)}
    how, layers = captured_layers(model, inputs)
    expected = eager_weights_of_texts(model, inputs)
    assert how == "interface" and layers.keys() == expected.keys()
    for place, weights in expected.items():
        got = whole_weights_of_texts(layers[place])
        torch.testing.assert_close(got, weights, rtol=0, atol=1e-5)
        assert (got[~seen.expand_as(got)] == 0).all()
        with pytest.MonkeyPatch.context() as patch:  # as many small tiles as a long text has large ones
            patch.setattr(tile, "TILE", 500)
            patch.setattr(tile, "MOST_ROWS", 5)
            in_tiles = whole_weights_of_texts(layers[place])
        torch.testing.assert_close(in_tiles, got, rtol=0, atol=1e-6)


def test_layers_that_share_a_module_are_numbered_by_call() -> None:
    model = ALBERT.build()
    inputs = random_inputs(model)
    how, layers = captured_layers(model, inputs)
    expected = eager_weights(model, inputs)
    assert how == "interface" and len({layer.module for layer in layers.values()}) == 1
    assert [layer.layer for layer in layers.values()] == [0, 1, 2]
    assert layers.keys() == expected.keys()
    for place, weights in expected.items():
        torch.testing.assert_close(whole_weights(layers[place]), weights, rtol=0, atol=1e-5)
    assert (expected["decoder", "self", 0] - expected["decoder", "self", 2]).abs().max() > 0.01
    _, again = captured_layers(model, inputs)
    assert list(again) == list(layers), "a second run counts anew"


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UserError, match="mamba cannot be shown: it returns no attention weights"):
        captured_layers(*_model_and_inputs("Mamba"))


def test_captured_layers_have_no_dense_mask() -> None:
    """No tensor passed on has an entry per query and key."""
    _, layers = captured_layers(*_model_and_inputs("Mistral"))
    for layer in map(attention_of, layers.values()):
        assert layer.rules.bias is None and layer.visibility.rule is None
        assert layer.key.shape[1] == 2 and layer.query.shape[1] == 4, "key and value stay unexpanded"


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
def test_module_names_tell_layer_and_kind(module: str, number: int, kind: str) -> None:
    assert (layer_number(module), layer_kind(module)) == (number, kind)


@pytest.mark.parametrize("attempt", range(5))
def test_eager_layers_keep_their_names(attempt: int) -> None:
    """A name must not be reused for a tensor at the address of a freed one."""
    _, layers = captured_layers(*_model_and_inputs("BLOOM"))
    assert [layer.module for layer in layers.values()] == ["h.0.self_attention", "h.1.self_attention"]
