"""self, multihead and cross with a model: reports on one of its layers."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from tests.conftest import Attn
from tests.eager import eager_weights
from tests.model_folders import save_model, save_tokenizer
from tests.running import run
from tools.tiny_architectures import VOCABULARY

SENTENCE = "the cat walks on the street"


def expected_weights(folder: Path, text: str = SENTENCE) -> dict[tuple[str, str, int], torch.Tensor]:
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
    return eager_weights(AutoModel.from_pretrained(folder), {"input_ids": torch.tensor([ids])})


@pytest.mark.parametrize("architecture", ["BERT", "Gemma 2", "GPT-OSS", "BLOOM"])
def test_multihead_shows_a_layer(tmp_path: Path, architecture: str) -> None:
    folder = save_model(tmp_path, architecture)
    report = run("multihead", model=str(folder), layer="1")
    weights = report.tensors["weights"]
    assert weights.axes == ("head", "query", "key")
    assert report.tokens == ("[CLS]", "the", "cat", "walks", "on", "the", "street", "[SEP]")
    expected = expected_weights(folder)["decoder", "self", 1]
    torch.testing.assert_close(torch.tensor(weights.values), expected, rtol=0, atol=1e-5)
    rows = report.statistics["rows"]
    assert rows["entropy"].axes == ("head", "query") and rows["entropy"].values.shape == (4, 8)
    if architecture == "GPT-OSS":
        assert (weights.values.sum(-1) < 0.999).all() and "rows sum to less than one" in " ".join(
            report.notes
        )


def test_self_shows_a_head(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BERT")
    report = run("self", model=str(folder), layer="1", head="2")
    weights = report.tensors["weights"]
    assert weights.axes == ("query", "key")
    expected = expected_weights(folder)["decoder", "self", 1][2]
    torch.testing.assert_close(torch.tensor(weights.values), expected, rtol=0, atol=1e-5)
    everything = run("multihead", model=str(folder), layer="1")
    assert (everything.tensors["weights"].values[2] == weights.values).all()
    scores = report.tensors["scores"].values
    softmaxed = (torch.tensor(scores) * 8**-0.5).softmax(-1)
    torch.testing.assert_close(softmaxed, torch.tensor(weights.values))


def test_the_output_is_that_of_the_model(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = save_model(tmp_path, "GPT-2")
    model = AutoModel.from_pretrained(folder).eval()
    seen = []
    model.h[1].attn.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    with torch.no_grad():
        model(torch.tensor([AutoTokenizer.from_pretrained(folder)(SENTENCE)["input_ids"]]))
    output = run("multihead", model=str(folder), layer="1").tensors["output"].values
    torch.testing.assert_close(torch.tensor(output), seen[0][0], rtol=1e-4, atol=1e-4)


def test_cross_shows_the_decoder_reading_the_encoder(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = save_model(tmp_path, "Marian")
    report = run(
        "cross", model=str(folder), sentence="the cat", context="die katze walks", layer="1", head="3"
    )
    assert report.tokens == ("[PAD]", "[CLS]", "the", "cat")
    assert report.context_tokens == ("[CLS]", "die", "katze", "walks", "[SEP]")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = {
        "input_ids": torch.tensor([tokenizer("die katze walks")["input_ids"]]),
        "decoder_input_ids": torch.tensor([[0, *tokenizer("the cat")["input_ids"][:-1]]]),
    }
    expected = eager_weights(AutoModel.from_pretrained(folder), inputs)["decoder", "cross", 1][3]
    got = torch.tensor(report.tensors["weights"].values)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--embed-dim", "8"], "--embed-dim: cannot be combined with --model, which has its own"),
        (["--batch-size", "2"], "--batch-size: cannot be combined with --model, which has its own"),
        (["--causal"], "--causal: cannot be combined with --model, which has its own"),
        (["--tokenizer", "words"], "--tokenizer: must be model if --model is set (got words)"),
        (["--head", "4"], "--head: must be from 0:0 to 0:3 in tiny-induction (got 0:4)"),
    ],
)
def test_settings_of_sampled_weights_are_refused_with_a_model(
    attn: Attn, flags: list[str], message: str
) -> None:
    model = Path(__file__).parents[3] / "attncli" / "data" / "tiny-induction"
    ended = attn(["self", "--model", str(model), *flags])
    assert ended.code == 2 and ended.out == "" and ended.err == f"{message}\n"


@pytest.mark.parametrize(
    "flags",
    [
        ["--tokenizer", "model"],
        ["--allow-download"],
        ["--image", "p.png"],
        ["--from", "0.5,0.5"],
        ["--words", "--explain"],
    ],
)
def test_settings_of_models_need_a_model(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    """One line, without the errors that the setting would cause with a model."""
    (tmp_path / "p.png").touch()
    monkeypatch.chdir(tmp_path)
    ended = attn(["self", *flags])
    assert (ended.code, ended.err) == (2, f"{flags[0]}: needs --model\n")


def test_a_model_without_an_encoder_has_no_cross_attention(attn: Attn, tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BERT")
    ended = attn(["cross", "--model", str(folder)])
    assert ended.code == 2 and "has no cross-attention" in ended.err


def test_resolved_settings_run_again(attn: Attn, tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BERT")
    shown = attn(["multihead", "--model", str(folder), "--layer", "1", "--show-config"]).out
    config = tmp_path / "again.yaml"
    config.write_text(shown)
    again = attn(["multihead", "--config", str(config), "--format", "json"])
    assert again.code == 0, again.err
    report = json.loads(again.out)
    assert report["spec"]["layer"] == 1 and "embed_dim" not in report["spec"]


def test_a_default_setting_is_named_by_its_flag(attn: Attn, tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=20)
    transformers.GPT2Model(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    ended = attn(["heads", "--model", str(tmp_path)])
    assert (ended.code, ended.err.startswith("--num-tokens: must be at most 9 for ")) == (2, True), ended.err
