"""Attentions in files as users of BertViz have them, shown with their tokens."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

import attncli
from tests.conftest import Attn

IDS = [2, 17, 23, 5, 31, 3, 11]
TOKENS = ("[CLS]", "the", "cat", "sat", "<b>down</b>", ".", "[SEP]")


@pytest.fixture(scope="module")
def attentions() -> tuple[Tensor, ...]:
    """Return a tensor (1, head, query, key) for each layer, as head_view in BertViz takes them."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 40, "num_attention_heads": 5, "num_hidden_layers": 3, "vocab_size": 37}
    model = BertModel(BertConfig(**sizes, intermediate_size=48), add_pooling_layer=False).eval()
    model.set_attn_implementation("eager")
    given: tuple[Tensor, ...] = model(torch.tensor([IDS]), output_attentions=True).attentions
    return given


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(attn: Attn, *arguments: str) -> Any:
    ended = attn(["show", *arguments, "--format", "json"])
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def written(name: str, attentions: tuple[Tensor, ...]) -> None:
    """Write the attentions as users do."""
    arrays = [layer.detach().numpy() for layer in attentions]
    match name:
        case "arr.npz":
            np.savez(name, *arrays)
        case "named.npz":
            np.savez(name, attention=np.concatenate(arrays), tokens=np.array(TOKENS))
        case "tokens.npz":
            np.savez_compressed(name, *arrays, tokens=np.array(TOKENS))
        case "tuple.pt":
            torch.save(attentions, name)  # with the gradients that they ask for
        case "list.pt":
            torch.save([layer.detach().half() for layer in attentions], name)
        case "dict.pt":
            torch.save({"attentions": attentions, "tokens": [*TOKENS]}, name)
        case "stacked.pth":
            torch.save(torch.cat(attentions).detach(), name)
        case "strided.pt":
            torch.save([layer.detach().mT.contiguous().mT.bfloat16() for layer in attentions], name)


@pytest.mark.parametrize(
    ("name", "has_tokens", "precision"),
    [
        ("arr.npz", False, 0),
        ("named.npz", True, 0),
        ("tokens.npz", True, 0),
        ("tuple.pt", False, 0),
        ("list.pt", False, 2**-11),
        ("dict.pt", True, 0),
        ("stacked.pth", False, 0),
        ("strided.pt", False, 2**-8),
    ],
)
def test_attentions_in_a_file_are_shown(
    attn: Attn, here: Path, attentions: tuple[Tensor, ...], name: str, has_tokens: bool, precision: float
) -> None:
    written(name, attentions)
    report = shown(attn, name)
    weights = report["tensors"]["weights"]
    assert weights["axes"] == ["layer", "head", "query", "key"]
    expected = torch.cat(attentions).detach().numpy()
    np.testing.assert_allclose(weights["values"], expected, atol=precision, rtol=0)
    assert report["tokens"] == (list(TOKENS) if has_tokens else [])
    of_python = attncli.read_cache(name, () if has_tokens else TOKENS)
    np.testing.assert_allclose(of_python.tensors["weights"].values, expected, atol=precision, rtol=0)
    assert of_python.tokens == TOKENS


def test_named_tokens_take_precedence(attn: Attn, here: Path, attentions: tuple[Tensor, ...]) -> None:
    written("dict.pt", attentions)
    Path("tokens.txt").write_text("\n".join("abcdefg"))
    assert shown(attn, "dict.pt", "--tokens", "tokens.txt")["tokens"] == [*"abcdefg"]


def test_attentions_in_memory_are_shown(attentions: tuple[Tensor, ...]) -> None:
    """Test what BertViz takes, and a dict with tokens."""
    expected = torch.cat(attentions).detach().numpy()
    for given in (attentions, [*attentions], {"attentions": attentions, "tokens": [*TOKENS]}):
        report = attncli.read_cache(given, () if isinstance(given, dict) else TOKENS)
        np.testing.assert_array_equal(report.tensors["weights"].values, expected)
        assert report.tokens == TOKENS


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_pickled_code_is_not_run(attn: Attn, here: Path, attentions: tuple[Tensor, ...]) -> None:
    torch.save([attentions[0].detach(), Code()], "code.pt")
    ended = attn(["show", "code.pt"])
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("code.pt: contains ") and ended.err.count("\n") == 1
    assert ".mkdir, which is not a tensor and may be code" in ended.err
    assert not Path("ran").exists()
    written("dict.pt", attentions)
    Path("cut.pt").write_bytes(Path("dict.pt").read_bytes()[:999])
    Path("none.pt").write_bytes(b"")
    torch.save({"loss": 3.0}, "loss.pt")
    torch.save({"encoder_attentions": attentions, "decoder_attentions": attentions}, "two.pt")
    torch.save([torch.cat([layer.detach()] * 2) for layer in attentions], "batch.pt")
    said = {
        "cut.pt": "is not a file of weights from torch.save, or is damaged",
        "none.pt": "is not a file of weights from torch.save, or is damaged",
        "loss.pt": "contains no tensors: save it with torch.save(outputs.attentions, FILE)",
        "two.pt": "choose one with --array NAME: encoder_attentions.*, decoder_attentions.*",
        "batch.pt": "contains 2 texts: save only one",
    }
    for file, message in said.items():
        ended = attn(["show", file])
        assert ended.code == 2 and message in ended.err and ended.err.count("\n") == 1, file
    assert (
        shown(attn, "two.pt", "--array", "encoder_attentions.*")["tensors"]["weights"]["axes"][0] == "layer"
    )
