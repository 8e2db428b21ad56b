"""SmolLM2-135M-Instruct: a Llama that writes sensible text, with grouped queries and induction heads.

0.5 GB: one process loads it, once, for all of this file.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from attncli.inputs.pretrained import Pretrained, kept_pretrained
from tests.checkpoints import smollm2
from tests.conftest import Attn
from tests.eager import captured_layers, eager_weights, whole_weights

pytestmark = pytest.mark.xdist_group("smollm2")

SENTENCE = "The quick brown fox jumps over the lazy dog because it was late."
INDUCTION = {(17, 3), (17, 4), (17, 5), (18, 6), (18, 7)}
PREVIOUS_TOKEN = 16, 0


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2()


@pytest.fixture(scope="module")
def pretrained(folder: Path) -> Pretrained:
    """The very model that `attn --model` has loaded."""
    return kept_pretrained(str(folder), allow_download=False, device=torch.device("cpu"))


def survey_rows(attn: Attn, folder: Path, *flags: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        attn(["heads", "--model", str(folder), *flags, "--format", "json"]).out
    )["statistics"]["heads"]
    return rows


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["layer"], row["head"]


def test_weights_equal_eager_attention(pretrained: Pretrained) -> None:
    inputs = pretrained.tokenizer(SENTENCE, return_tensors="pt")
    _, layers = captured_layers(pretrained.model, inputs)
    expected = eager_weights(pretrained.model, inputs)
    assert len(layers) == 30
    for number in (0, 17):
        weights = whole_weights(layers["decoder", "self", number])
        assert weights.shape[0] == 9, "its 3 key/value heads serve 3 heads each"
        torch.testing.assert_close(weights, expected["decoder", "self", number], rtol=0, atol=1e-5)


def test_five_heads_find_what_came_after_the_first_copy(attn: Attn, folder: Path) -> None:
    rows = survey_rows(
        attn, folder, "--probe", "repeated", "--seed", "1", "--sort", "induction_stripe", "--top", "5"
    )
    assert set(map(place, rows)) == INDUCTION
    assert place(rows[0]) == (18, 6) and rows[0]["induction_stripe"] > 0.7


def test_the_survey_finds_them_as_eager_attention_does(
    attn: Attn, folder: Path, pretrained: Pretrained
) -> None:
    """On a list of words, written twice: the mean weight on the key after the first copy."""
    words = " apple river stone cloud tiger piano window garden bottle candle"
    ids = pretrained.tokenizer(words + words, return_tensors="pt")
    length = ids["input_ids"].shape[1] // 2
    assert ids["input_ids"][0].tolist() == 2 * pretrained.tokenizer(words)["input_ids"]
    expected = eager_weights(pretrained.model, ids)
    stripe = partial(torch.diagonal, offset=1 - length, dim1=-2, dim2=-1)
    rows = survey_rows(attn, folder, "--sentence", words + words, "--sort", "induction", "--top", "5")
    for row in rows:
        assert place(row) in INDUCTION
        weights = expected["decoder", "self", row["layer"]][row["head"]]
        assert row["induction"] == pytest.approx(float(stripe(weights)[1:].mean()), abs=1e-5)
    assert rows[0]["induction"] > 0.7


def test_the_head_before_them_looks_at_the_previous_token(attn: Attn, folder: Path) -> None:
    """The induction heads of the next layers need what it moves: which token came before each key."""
    (row,) = survey_rows(attn, folder, "--sentence", SENTENCE, "--sort", "previous_token", "--top", "1")
    assert place(row) == PREVIOUS_TOKEN and row["previous_token"] > 0.75


def test_most_heads_park_their_weight_on_the_first_token(attn: Attn, folder: Path) -> None:
    rows = survey_rows(attn, folder, "--sentence", SENTENCE)
    assert len(rows) == 270
    assert sum(row["sink_mass"] > 0.3 for row in rows) > 200


def test_its_chat_template_came_along(pretrained: Pretrained) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = pretrained.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
