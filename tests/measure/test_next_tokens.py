"""The next token against transformers' own run, and without heads against weights that are zero."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import attncli
from attncli.errors import UserError
from tests.model_folders import save_model, save_writer

TEXT = "the cat walks on the street"


def own_probabilities(folder: Path, ids: torch.Tensor, zeroed: dict[int, list[int]]) -> torch.Tensor:
    """What transformers' eager attention expects, with these heads' columns of W_O zero."""
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    size = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        for layer, heads in zeroed.items():
            for head in heads:
                projection = model.model.layers[layer].self_attn.o_proj.weight
                projection[:, head * size : (head + 1) * size] = 0
        return model(ids[None]).logits[0, -1].softmax(dim=-1)


def test_next_tokens_are_those_of_the_model_with_all_heads_and_without_some(tmp_path: Path) -> None:
    folder = save_writer(tmp_path / "Llama", "Llama")
    model = attncli.open_model(folder)
    ids = attncli.read_text(model, TEXT).text.ids
    whole, less = (own_probabilities(folder, ids, zeroed) for zeroed in ({}, {0: [1], 1: [0, 1]}))
    plain = attncli.next_tokens(model, TEXT, top=7).tokens
    assert plain.column("token_id").tolist() == whole.topk(7).indices.tolist()
    torch.testing.assert_close(
        torch.tensor(plain.column("probability")), whole.topk(7).values, rtol=1e-4, atol=1e-7
    )
    assert "without" not in plain.cells
    both = attncli.next_tokens(model, TEXT, heads="0:1,1:0,1:1", top=5).tokens
    places = both.column("token_id").tolist()
    assert places == whole.maximum(less).topk(5).indices.tolist()
    for name, expected in {"probability": whole, "without": less}.items():
        numbers = torch.tensor(both.column(name))
        torch.testing.assert_close(numbers, expected[places], rtol=1e-4, atol=1e-7)
    assert (whole - less).abs().max() > 1e-3
    again = attncli.next_tokens(model, TEXT, top=7).tokens
    assert again.column("probability").tolist() == plain.column("probability").tolist()


@pytest.mark.parametrize(
    ("architecture", "heads", "line"),
    [
        ("Llama", "9:0", "heads: must be from 0:0 to"),
        ("Llama", "decoder:0:1", "heads: Llama has no stack decoder"),
        ("BERT", (), "model: BERT predicts no next token: next tokens are those of a decoder alone"),
        ("T5", (), "model: T5 has an encoder beside its decoder"),
    ],
)
def test_what_has_no_next_token_or_no_such_head_is_a_line(
    tmp_path: Path, architecture: str, heads: str, line: str
) -> None:
    save = save_model if architecture == "BERT" else save_writer
    folder = save(tmp_path / architecture, architecture)
    with pytest.raises(UserError) as raised:
        attncli.next_tokens(str(folder), TEXT, heads=heads)
    assert raised.value.lines[0].startswith(line) and len(raised.value.lines) == 1
