"""The next token, against transformers; without heads, against weights set to zero."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedModel

import attncli
from attncli.errors import UserError
from attncli.models.architectures import output_projection
from attncli.models.removal import heads_removed
from tests.model_folders import save_model, save_writer

TEXT = "the cat walks on the street"


def own_probabilities(folder: Path, ids: torch.Tensor, zeroed: dict[int, list[int]]) -> torch.Tensor:
    """The probabilities from transformers' eager attention, with these heads' columns of W_O set to 0."""
    model = LlamaForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    size = model.config.hidden_size // model.config.num_attention_heads
    with torch.no_grad():
        for layer, heads in zeroed.items():
            for head in heads:
                projection = model.model.layers[layer].self_attn.o_proj.weight
                projection[:, head * size : (head + 1) * size] = 0
        return model(ids[None]).logits[0, -1].softmax(dim=-1)


def test_next_tokens_equal_the_models_with_and_without_heads(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("architecture", ["GPT-2", "Llama"])
def test_generation_and_why_without_heads_equal_zero_columns(tmp_path: Path, architecture: str) -> None:
    """1:0 is one of the even heads, with which attn checks that W_O reads concatenated heads."""
    folder, heads = save_writer(tmp_path / architecture, architecture), ["0:1", "1:0"]
    model = attncli.open_model(folder)
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    ids = attncli.read_text(model, TEXT).text.ids[None]
    for name in heads:
        layer, head = map(int, name.split(":"))
        projection = output_projection(plain, *modules_of_attention(plain)[layer])
        assert projection is not None
        size = plain.config.hidden_size // plain.config.num_attention_heads
        columns = slice(head * size, (head + 1) * size)
        of_heads = projection.weight[columns] if architecture == "GPT-2" else projection.weight[:, columns]
        of_heads.data.zero_()
    logits = plain(ids).logits[0, -1].detach()
    expected = plain.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False, pad_token_id=0
    )[0, ids.shape[1] :]
    with heads_removed(heads, model):
        assert attncli.generate(model, TEXT, max_new_tokens=7).ids == expected.tolist()
        why = attncli.why(model, TEXT)
    assert why.ids == [int(logits.argmax())]
    assert why.parts.logit == pytest.approx(float(logits.max()), abs=1e-5)
    assert why.parts.sum == pytest.approx(why.parts.logit, abs=1e-4)
    contributions = {f"{row.layer}:{row.head}": row.contribution for row in why.heads}
    assert [contributions.pop(name) for name in heads] == [0, 0] and all(contributions.values())


def modules_of_attention(model: PreTrainedModel) -> list[tuple[str, int]]:
    """The name of each layer's attention, and the size of the input of its W_O."""
    names = [name for name, _ in model.named_modules() if name.endswith((".attn", ".self_attn"))]
    return [(name, model.config.hidden_size) for name in names]


def test_an_answer_may_be_a_token_id() -> None:
    """Also ids of tokens that no text encodes: special tokens and parts of a character."""
    model = attncli.open_model()
    logits = model.whole(attncli.read_text(model, "abab").text.ids[None]).logits[0, -1].detach()
    for token in range(0, len(logits), 17):
        why = attncli.why(model, "abab", answer=token)
        assert why.ids == [token] and why.parts.logit == pytest.approx(float(logits[token]), abs=1e-4)
    compared = attncli.why(model, "abab", answer="a", against=model.tokenizer.convert_tokens_to_ids("b"))
    texts = attncli.why(model, "abab", answer="a", against="b")
    assert compared.ids == texts.ids and compared.parts.logit == texts.parts.logit
    for wrong in (-1, len(logits)):
        with pytest.raises(UserError, match="answer: must be a token id of tiny-induction, below "):
            attncli.why(model, "abab", answer=wrong)


@pytest.mark.parametrize(
    ("architecture", "heads", "line"),
    [
        ("Llama", "9:0", "heads: must be from 0:0 to"),
        ("Llama", "decoder:0:1", "heads: Llama has no stack decoder"),
        ("BERT", (), "model: BERT predicts no next token: use a decoder-only model"),
        ("T5", (), "model: T5 has an encoder and a decoder"),
    ],
)
def test_models_without_next_tokens_and_unknown_heads_are_one_line(
    tmp_path: Path, architecture: str, heads: str, line: str
) -> None:
    save = save_model if architecture == "BERT" else save_writer
    folder = save(tmp_path / architecture, architecture)
    with pytest.raises(UserError) as raised:
        attncli.next_tokens(str(folder), TEXT, heads=heads)
    assert raised.value.lines[0].startswith(line) and len(raised.value.lines) == 1
