"""Rows of layers without a softmax as a model generates, against the matrix of the whole text."""

from collections.abc import Callable
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

import attncli
from attncli.errors import UserError
from attncli.features.linear import linear_layer
from attncli.measure import signed_heads
from attncli.models.layer_sources import CapturedMixer, capturing_mixers
from attncli.models.loading import in_use, open_model
from attncli.models.prompts import read_prompt
from attncli.models.targets import Target
from attncli.runs.saved_reports import SAVED
from tests.conftest import some_seldom
from tests.core.test_signed_rows import naive
from tests.running import run
from tools.architecture_sweep.folders import text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

FAMILIES = ("qwen3_next", "kimi_linear", "bamba", "falcon_h1", "minimax", "jamba", "zamba", "nemotron_h")
NUM_NEW = 4


def layers_at_once(folder: str, text: str, new: list[int]) -> dict[int, CapturedMixer]:
    """The layers on the text and on all generated tokens but the last."""
    layers: list[CapturedMixer] = []
    with in_use(open_model(folder)) as pretrained, torch.no_grad():
        ids = [*read_prompt(pretrained, text, max_new_tokens=1).prompt.ids.tolist(), *new[:-1]]
        with capturing_mixers(pretrained.whole, layers.append):
            pretrained.whole(input_ids=torch.tensor([ids]), use_cache=False)
    return {layer.layer: layer for layer in layers}


@pytest.mark.parametrize("name", some_seldom(FAMILIES, FAMILIES[::2]))
def test_rows_match_the_whole_text(saved: Callable[[str], str], name: str) -> None:
    folder, text = saved(name), text_of(37)
    result = attncli.generate(folder, text, max_new_tokens=NUM_NEW, maps="heads")
    layers = layers_at_once(folder, text, [*result.ids])
    assert len(result.linear) == sum(layer.heads.shape[1] for layer in layers.values()) > 0
    assert result.linear_weights is not None and not result.unshown.startswith("Not shown")
    assert result.linear_weights.axes == ("layer", "head", "query", "key")
    num_new = len(result.ids)
    for row in result.linear:
        layer = layers[row.layer]
        matrix = layer.heads.weights()[0, row.head].detach()
        drawn = result.linear_weights.values[row.layer, row.head]
        assert np.abs(drawn - matrix[-num_new:].numpy()).max() <= 1e-5 * float(matrix.abs().max())
        expected = naive(torch.cat([torch.zeros_like(matrix[:-num_new]), matrix[-num_new:]]))
        decay = layer.heads.log_decay
        assert decay is not None
        expected["half_life"] = log(2) / -float(decay[0, :, row.head].double().mean())
        if name == "zamba":  # each token looks at itself alone, so that all keys are equal
            del expected["one_key"]
        for statistic, number in expected.items():
            assert row[statistic] == pytest.approx(number, rel=1e-3, abs=1e-5), statistic


@pytest.mark.nightly
def test_long_prompts_continue_from_their_state(
    saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several whole chunks precede the last tokens, and a few heads are computed at a time."""
    for chunk, most in ((16, 2**24), (7, 1)):
        monkeypatch.setattr(linear_layer, "CHUNK", chunk)
        monkeypatch.setattr(linear_layer, "MOST_FACTORS", most)
        test_rows_match_the_whole_text(saved, "qwen3_next")
        test_rows_match_the_whole_text(saved, "bamba")


@pytest.mark.parametrize("name", ["qwen3_next", "jamba"])
def test_a_chosen_head_has_shares_and_rows(saved: Callable[[str], str], name: str) -> None:
    """Tokens have shares of |w|, the map has the weights, and a given answer has the same rows."""
    folder, text = saved(name), text_of(29)
    result = attncli.generate(folder, text, max_new_tokens=NUM_NEW, head="2:0", maps="heads")
    assert not result.heads and len(result.linear) == 1 and result.unshown == ""
    assert result.linear_weights is not None and result.linear_weights.axes == ("query", "key")
    rows = result.linear_weights.values
    num_read = rows.shape[1] - NUM_NEW + 1
    for row, token in zip(rows, result.tokens, strict=True):
        shares = np.abs(row) / np.abs(row).sum()
        assert token.first_key == pytest.approx(shares[0], abs=1e-6)
        assert token.prompt_mass == pytest.approx(shares[:num_read].sum(), abs=1e-6)
        assert token.written_mass == pytest.approx(1 - shares[:num_read].sum(), abs=1e-6)
        best = token.keys_beside_first[0]
        assert best is not None and shares[best] == shares[1:].max()
    with in_use(open_model(folder)) as pretrained:
        prompt = replace(read_prompt(pretrained, text, max_new_tokens=1), answer=Target([*result.ids]))
    again = attncli.generate(folder, prompt, head="2:0", maps="heads")
    assert again.linear_weights is not None
    assert np.abs(again.linear_weights.values - rows).max() <= 1e-5 * np.abs(rows).max()
    assert again.linear[0].distance == pytest.approx(result.linear[0].distance, rel=1e-4)


def test_a_report_is_saved_with_signed_rows(saved: Callable[[str], str]) -> None:
    settings = {"model": saved("qwen3_next"), "sentence": text_of(11), "max_new_tokens": 3}
    report = run("generate", layer=2, maps="heads", **settings)
    assert report.tensors["linear_weights"].axes == ("head", "query", "key")
    assert SAVED.validate_python(report.to_data()).restored().to_data() == report.to_data()


def test_layers_beyond_memory_are_named(saved: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_heads, "MOST_STATES", 1)
    folder, text = saved("qwen3_next"), text_of(11)
    result = attncli.generate(folder, text, max_new_tokens=2)
    assert not result.linear and result.unshown == result.notes[0]
    assert result.unshown.startswith("Without a softmax and therefore not shown: gated delta net")
    assert len(attncli.generate(folder, text, max_new_tokens=2, layer=2).linear) == 4


def test_missing_heads_and_needles_are_refused(saved: Callable[[str], str]) -> None:
    for head in ("0:9", "9:0"):
        with pytest.raises(UserError, match=r"head: .*0 to 3"):
            attncli.generate(saved("qwen3_next"), text_of(11), max_new_tokens=2, head=head)
    with pytest.raises(UserError, match="needle: "):
        run("generate", model=saved("qwen3_next"), sentence="a b c a b", needle="a b", layer=0, head=1)
