"""Head statistics without the matrix against plain loops over transformers' eager weights.

Everything is float64 but the softmax of eager attention, which some architectures compute in float32.
"""

import pytest
import torch
from attncli.experiments.head_figures import head_figures
from attncli.experiments.head_rows import head_rows, weighted_by_values, without_first_keys
from attncli.mechanisms.attention_layer import AttentionLayer

from attncli.statistics.value_norms import value_norms
from tests.eager import captured_layers, eager_weights, whole_weights
from tests.naive_heads import naive_figures, skipped
from tools.tiny_architectures import ARCHITECTURES, random_inputs

NAMES = [name for name in ARCHITECTURES if name != "Mamba"]


def few_tokens(num_tokens: int) -> torch.Tensor:
    """Tokens that repeat, so that no pattern is empty."""
    return torch.randint(3, 9, (1, num_tokens), generator=torch.Generator().manual_seed(num_tokens))


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("name", NAMES)
def test_figures_equal_plain_loops(name: str, skip: int) -> None:
    model = ARCHITECTURES[name].build().double()
    inputs = random_inputs(model)
    ids = None
    if "input_ids" in inputs:
        ids = inputs["input_ids"] = few_tokens(23)
    else:
        inputs = {key: tensor.double() for key, tensor in inputs.items()}
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = few_tokens(11)
    _, layers = captured_layers(model, inputs)
    expected = eager_weights(model, inputs)
    for place, layer in layers.items():
        stack, kind, _ = place
        read = ids if stack == "encoder" or "decoder_input_ids" not in inputs else inputs["decoder_input_ids"]
        tokens = None if kind == "cross" or read is None else read[0]
        got = head_figures(head_rows(without_first_keys(layer, skip)), ids=tokens, first_key=skip)
        weights = skipped(expected[place], skip)
        naive = naive_figures(weights, None if tokens is None else tokens.tolist(), skip)
        for figure, numbers in naive.items():
            torch.testing.assert_close(
                got[figure].double(),
                torch.tensor(numbers).double(),
                rtol=1e-6,
                atol=1e-7,
                equal_nan=True,
                msg=figure,
            )


@pytest.mark.parametrize("name", ["BERT", "Llama", "Mistral", "Gemma 2", "GPT-OSS", "T5"])
def test_weighted_rows_are_normalised_products(name: str) -> None:
    model = ARCHITECTURES[name].build().double()
    _, layers = captured_layers(model, random_inputs(model))
    for layer in layers.values():
        assert isinstance(layer, AttentionLayer)
        groups = layer.num_heads // layer.value.shape[0]
        values = layer.value.repeat_interleave(groups, dim=0)
        projection = torch.randn(layer.num_heads, 5, values.shape[-1], dtype=torch.float64)
        norms = value_norms(values, projection)
        explicit = torch.stack([(values[h] @ projection[h].mT).norm(dim=-1) for h in range(layer.num_heads)])
        torch.testing.assert_close(norms, explicit)
        products = whole_weights(layer) * explicit.unsqueeze(1)
        expected = products / products.sum(dim=-1, keepdim=True)
        weighted = weighted_by_values(layer, norms)
        torch.testing.assert_close(whole_weights(weighted), expected)
        entropy = head_rows(weighted).figures["entropy"]
        torch.testing.assert_close(entropy.double(), torch.special.entr(expected).sum(-1))


def test_float32_stays_close_to_float64() -> None:
    """A longer text in several blocks, with a window."""
    model = ARCHITECTURES["Mistral"].build()
    inputs = {"input_ids": few_tokens(301)}
    _, layers = captured_layers(model, inputs)
    for layer in layers.values():
        got = head_figures(head_rows(layer), ids=inputs["input_ids"][0])
        naive = naive_figures(whole_weights(layer), inputs["input_ids"][0].tolist())
        for figure, numbers in naive.items():
            torch.testing.assert_close(
                got[figure].double(), torch.tensor(numbers).double(), rtol=1e-4, atol=1e-5
            )
