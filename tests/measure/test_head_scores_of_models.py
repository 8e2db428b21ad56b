"""Head scores of models against plain loops over transformers' eager weights.

Everything is in float64 except for eager attention's softmax, which some architectures compute in float32.
"""

import pytest
import torch

from attncli.core.engines import attend
from attncli.core.formulas import value_norms
from attncli.core.layer import AttentionLayer, Marks, Wanted
from attncli.core.row_tiles import LayerOrWeights
from attncli.measure.heads import looks_ahead, weighted_by_values, without_first_keys
from attncli.measure.patterns import head_scores, one_key, wanted_scores
from tests.conftest import in_turn
from tests.eager import captured_layers, eager_weights_of_texts, whole_weights, whole_weights_of_texts
from tests.naive_heads import naive_figures, skipped
from tools.tiny_architectures import ARCHITECTURES, random_inputs

NAMES = [name for name in ARCHITECTURES if name != "Mamba"]


def few_tokens(num_tokens: int, num_texts: int = 1) -> torch.Tensor:
    """Repeated tokens, so that no pattern is empty."""
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randint(3, 9, (num_texts, num_tokens), generator=generator)


def places(num_texts: int, num_queries: int, num_keys: int) -> Marks:
    """Special keys, and named queries and keys, different in each text; in some, the first key is special."""
    generator = torch.Generator().manual_seed(num_keys)
    sides = num_keys, num_queries, num_keys
    flags = torch.zeros(3, num_texts, max(sides), dtype=torch.bool)
    for flag, size in zip(flags, sides, strict=True):
        flag[:, :size] = torch.rand(num_texts, size, generator=generator) < 0.3
        flag[:, size - 1] = True
    return Marks(*flags)


def scores_of(
    attention: LayerOrWeights, ids: torch.Tensor | None, marks: Marks, first_key: int = 0
) -> dict[str, torch.Tensor]:
    sees_more = ids is None or looks_ahead(attention)
    wanted = wanted_scores(
        ids, marks, first_key=first_key, to_some=True, from_some=True, looks_ahead=sees_more
    )
    found = [attend(attention, wanted)]
    scores = head_scores(found, wanted) | {"one_key_mass": one_key(found, wanted)[0]}
    return {name: of_layers[0] for name, of_layers in scores.items()}


@pytest.mark.parametrize(("name", "skip", "num_texts"), in_turn(NAMES, [(0, 1), (2, 3), (0, 3), (2, 1)]))
def test_scores_equal_plain_loops(name: str, skip: int, num_texts: int) -> None:
    model = ARCHITECTURES[name].build().double()
    inputs = random_inputs(model)
    ids = None
    if "input_ids" in inputs:
        ids = inputs["input_ids"] = few_tokens(23, num_texts)
    else:
        generator = torch.Generator().manual_seed(3)
        inputs = {
            key: torch.randn(num_texts, *tensor.shape[1:], generator=generator, dtype=torch.float64)
            for key, tensor in inputs.items()
        }
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = few_tokens(11, num_texts)
    _, layers = captured_layers(model, inputs)
    expected = eager_weights_of_texts(model, inputs)
    for place, layer in layers.items():
        stack, kind, _ = place
        read = ids if stack == "encoder" or "decoder_input_ids" not in inputs else inputs["decoder_input_ids"]
        tokens = None if kind == "cross" or read is None else read
        marks = places(num_texts, *layer.attention.shape[2:])
        got = scores_of(without_first_keys(layer.attention, skip), tokens, marks, skip)
        weights = skipped(expected[place], skip)
        for text in range(num_texts):
            own = None if tokens is None else tokens[text].tolist()
            special, *sought = (flag[text].nonzero().flatten().tolist() for flag in marks)
            naive = naive_figures(weights[text], own, skip, special=special, sought=tuple(sought))
            for score, numbers in naive.items():
                torch.testing.assert_close(
                    got[score][text].double(),
                    torch.tensor(numbers).double(),
                    rtol=1e-6,
                    atol=1e-7,
                    equal_nan=True,
                    msg=score,
                )


@pytest.mark.parametrize("name", ["BERT", "Llama", "Mistral", "Gemma 2", "GPT-OSS", "T5"])
def test_weighted_rows_are_normalised_products(name: str) -> None:
    model = ARCHITECTURES[name].build().double()
    inputs = {key: tensor.repeat(2, 1) for key, tensor in random_inputs(model).items()}
    inputs["input_ids"][1] = inputs["input_ids"][1].flip(0)
    _, layers = captured_layers(model, inputs)
    for layer in layers.values():
        attention = layer.attention
        assert isinstance(attention, AttentionLayer)
        values = attention.value.repeat_interleave(attention.group, dim=1)
        projection = torch.randn(attention.num_heads, 5, values.shape[-1], dtype=torch.float64)
        norms = torch.stack([value_norms(text, projection) for text in values])
        explicit = torch.stack(
            [
                torch.stack([(text[h] @ projection[h].mT).norm(dim=-1) for h in range(attention.num_heads)])
                for text in values
            ]
        )
        torch.testing.assert_close(norms, explicit)
        products = whole_weights_of_texts(layer) * explicit.unsqueeze(2)
        expected = products / products.sum(dim=-1, keepdim=True)
        found = attend(weighted_by_values(attention, norms), Wanted(rows=("entropy",), weights=True))
        torch.testing.assert_close(found.weights, expected)
        torch.testing.assert_close(found.rows["entropy"].double(), torch.special.entr(expected).sum(-1))


@pytest.mark.nightly
def test_float32_stays_close_to_float64() -> None:
    """A longer text in several blocks, with a window."""
    model = ARCHITECTURES["Mistral"].build()
    inputs = {"input_ids": few_tokens(301)}
    _, layers = captured_layers(model, inputs)
    for layer in layers.values():
        marks = places(1, 301, 301)
        got = scores_of(layer.attention, inputs["input_ids"], marks)
        special, *sought = (flag[0].nonzero().flatten().tolist() for flag in marks)
        own = inputs["input_ids"][0].tolist()
        naive = naive_figures(whole_weights(layer), own, special=special, sought=tuple(sought))
        for score, numbers in naive.items():
            torch.testing.assert_close(
                got[score][0].double(), torch.tensor(numbers).double(), rtol=1e-4, atol=1e-5
            )
