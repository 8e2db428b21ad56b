"""Words in place of tokens, against naive loops over transformers' eager weights."""

import json
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModel, PreTrainedTokenizerFast

from attncli.errors import UserError
from attncli.models.pretrained import ModelText
from attncli.models.words import words_of, words_of_characters
from tests.commands.test_models_together import assert_together_is_alone
from tests.conftest import Attn, in_turn
from tests.eager import eager_weights
from tests.model_folders import save_model
from tests.naive_heads import naive_figures, skipped
from tests.running import run

SENTENCE = "the cat sat on a mat as the cat ran"
TOKENS = ["[CLS]", *(f"##{c}" if n else c for word in SENTENCE.split() for n, c in enumerate(word)), "[SEP]"]
WORDS = ("[CLS]", *SENTENCE.split(), "[SEP]")
TEXTS = [SENTENCE, "a cat", "the mat on a cat", "it ran", "i at", "ran it as a mat ran", "to be"]


def save_letters(folder: Path, architecture: str) -> Path:
    """A model in which each token is a letter: `c ##a ##t`."""
    save_model(folder, architecture)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *ascii_lowercase, *(f"##{c}" for c in ascii_lowercase)]
    tokenizer = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return folder


def groups(tokens: list[str]) -> list[list[int]]:
    found: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token.startswith("##"):
            found[-1].append(place)
        else:
            found.append([place])
    return found


def naive_words(weights: torch.Tensor, queries: list[list[int]], keys: list[list[int]]) -> np.ndarray:
    merged = np.zeros((len(weights), len(queries), len(keys)))
    for head, of_head in enumerate(weights.double().tolist()):
        for a, rows in enumerate(queries):
            for b, columns in enumerate(keys):
                sums = [sum(of_head[i][j] for j in columns) for i in rows]
                merged[head, a, b] = sum(sums) / len(sums)
    return merged


def eager(
    folder: Path, text: str = SENTENCE, *, both: bool = False
) -> dict[tuple[str, str, int], torch.Tensor]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    inputs = {"input_ids": ids}
    if both:
        inputs["decoder_input_ids"] = torch.cat([torch.tensor([[0]]), ids[:, :-1]], dim=1)
    return eager_weights(AutoModel.from_pretrained(folder), inputs)


@pytest.mark.parametrize("architecture", ["BERT", "GPT-OSS", "BLOOM"])
def test_maps_of_words_equal_a_naive_loop(tmp_path: Path, architecture: str) -> None:
    folder = save_letters(tmp_path, architecture)
    report = run("heads", model=str(folder), sentence=SENTENCE, words=True, maps="self")
    weights = report.tensors["weights"]
    assert report.tokens == WORDS and weights.axes == ("layer", "head", "query", "key")
    found = eager(folder)
    for layer in range(2):
        expected = naive_words(found["decoder", "self", layer], groups(TOKENS), groups(TOKENS))
        np.testing.assert_allclose(weights.values[layer], expected, rtol=0, atol=1e-5)
    of_layer = run("multihead", model=str(folder), sentence=SENTENCE, words=True, layer=1)
    np.testing.assert_allclose(of_layer.tensors["weights"].values, expected, rtol=0, atol=1e-5)
    of_head = run("self", model=str(folder), sentence=SENTENCE, words=True, layer=1, head=2)
    np.testing.assert_allclose(of_head.tensors["weights"].values, expected[2], rtol=0, atol=1e-5)
    assert list(of_head.tensors) == ["weights"] and of_head.tokens == WORDS


@pytest.mark.parametrize(("architecture", "skip"), in_turn(["BERT", "GPT-2"], [0, 2]))
def test_statistics_of_words_equal_a_naive_loop(tmp_path: Path, architecture: str, skip: int) -> None:
    folder = save_letters(tmp_path, architecture)
    report = run("heads", model=str(folder), sentence=SENTENCE, words=True, skip_sink=skip)
    ids = [WORDS.index(word) for word in WORDS]
    found = eager(folder)
    for layer in range(2):
        weights = torch.tensor(naive_words(found["decoder", "self", layer], groups(TOKENS), groups(TOKENS)))
        expected = naive_figures(skipped(weights, skip), ids, skip, special=(0, len(ids) - 1))
        rows = [row for row in report.table("heads") if row["layer"] == layer]
        assert {"entropy", "previous_token", "duplicate_token", "induction"} <= expected.keys()
        del expected["from_to_weight"]
        for name, values in expected.items():
            np.testing.assert_allclose([row[name] for row in rows], values, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("maps", ["self", "cross", "encoder"])
def test_stacks_of_words_equal_a_naive_loop(tmp_path: Path, maps: str) -> None:
    folder = save_letters(tmp_path, "T5")
    weights = run("heads", model=str(folder), sentence=SENTENCE, words=True, maps=maps).tensors["weights"]
    # The decoder does not read the last token, [SEP], but has a start token before the others.
    decoder, encoder = groups(["[PAD]", *TOKENS[:-1]]), groups(TOKENS)
    sides = {"self": (decoder, decoder), "cross": (decoder, encoder), "encoder": (encoder, encoder)}
    place = {"self": ("decoder", "self"), "cross": ("decoder", "cross"), "encoder": ("encoder", "self")}
    found = eager(folder, both=True)
    for layer in range(2):
        expected = naive_words(found[(*place[maps], layer)], *sides[maps])
        np.testing.assert_allclose(weights.values[layer], expected, rtol=0, atol=1e-5)


def test_cross_attention_between_words(tmp_path: Path) -> None:
    folder = save_letters(tmp_path, "BART")
    report = run("cross", model=str(folder), sentence="a mat ran", context="the cat", words=True)
    assert report.tokens == ("[PAD]", "[CLS]", "a", "mat", "ran")
    assert report.context_tokens == ("[CLS]", "the", "cat", "[SEP]")
    np.testing.assert_allclose(report.tensors["weights"].values.sum(axis=-1), np.ones(5), atol=1e-5)


@pytest.mark.parametrize("architecture", ["T5", "BLOOM"])
def test_words_are_the_same_in_a_batch_and_alone(tmp_path: Path, architecture: str) -> None:
    folder = save_letters(tmp_path, architecture)
    assert_together_is_alone("heads", folder, TEXTS[:4], words=True)
    assert_together_is_alone("self", folder, TEXTS[:4], words=True)


def test_a_survey_of_words_is_the_mean_over_texts(tmp_path: Path) -> None:
    folder, texts = save_letters(tmp_path / "model", "BERT"), tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    each = [run("heads", model=str(folder), sentence=text, words=True) for text in TEXTS]
    survey = run("heads", model=str(folder), texts=str(texts), words=True)
    for name in ("entropy", "previous_token", "distance"):
        means = np.mean([[row[name] for row in one.table("heads")] for one in each], axis=0)
        np.testing.assert_allclose([row[name] for row in survey.table("heads")], means, rtol=0, atol=1e-5)
    examples = run(
        "heads",
        model=str(folder),
        texts=str(texts),
        words=True,
        head="1:2",
        num_examples=1,
        sort="max_weight",
    )
    rows = [row for row in examples.table("example_weights") if row["kind"] == "strongest"]
    (example,) = (row for row in examples.table("examples") if row["kind"] == "strongest")
    text = int(str(example["text"])) - 1
    assert [row["token"] for row in rows] == ["[CLS]", *TEXTS[text].split(), "[SEP]"]
    of_head = run("self", model=str(folder), sentence=TEXTS[text], words=True, layer=1, head=2)
    expected = of_head.tensors["weights"].values[example["query"]]
    np.testing.assert_allclose([row["weight"] for row in rows], expected, rtol=0, atol=1e-5)


def test_words_are_named_as_in_the_text(tmp_path: Path) -> None:
    folder = save_letters(tmp_path, "BERT")
    report = run(
        "heads", model=str(folder), sentence=SENTENCE, words=True, **{"from": ["ran"], "to": ["cat"]}
    )
    of_words = run("multihead", model=str(folder), sentence=SENTENCE, words=True, layer=0)
    weights = of_words.tensors["weights"].values[:, 10, [2, 9]].sum(axis=-1)
    rows = sorted((r for r in report.table("heads") if r["layer"] == 0), key=lambda row: row["head"])
    np.testing.assert_allclose([row["from_to_weight"] for row in rows], weights, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "don't stop, well-known U.S. 3.14",
            ["don't", "stop", ",", "well-known", "U", ".", "S", ".", "3.14"],
        ),
        ("(a)  'b' c_d", ["(", "a", ")", "'", "b", "'", "c_d"]),
        ("x=1+y <b>", ["x", "=", "1", "+", "y", "<", "b", ">"]),
        ("नमस्ते दुनिया 👨‍👩‍👧", ["नमस्ते", "दुनिया", "👨‍👩‍👧"]),
        ("a\n\nb ", ["a", "\n", "\n", "b"]),
        ("", []),
    ],
)
def test_the_words_of_a_text(text: str, words: list[str]) -> None:
    found: dict[int, str] = {}
    for number, char in zip(words_of_characters(text), text, strict=True):
        found[number] = found.get(number, "") + char
    assert [word.strip(" ") for word in found.values() if word.strip(" ")] == words


def test_tokens_of_bytes_and_tokens_across_words_are_merged() -> None:
    tokenizer = Tokenizer(
        models.BPE({c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    encoded = tokenizer.encode("naïve 😀 don't")
    words = words_of(
        "naïve 😀 don't",
        words_of_characters("naïve 😀 don't"),
        encoded.tokens,
        encoded.ids,
        encoded.offsets,
        (),
    )
    assert words.texts == ("naïve", "😀", "don't")
    assert [words.of_token.count(n) for n in range(3)] == [6, 5, 6]
    spans = [(0, 2), (2, 4), (4, 5), (5, 6), (0, 0)]
    found = words_of(
        "(cat).", words_of_characters("(cat)."), ["(c", "at", ")", ".", "</s>"], [5, 6, 7, 8, 2], spans, {2}
    )
    assert found.texts == ("(cat", ")", ".", "</s>") and found.of_token == (0, 0, 1, 2, 3)


def test_a_word_is_the_same_with_and_without_a_space_before_it() -> None:
    text = "cat the cat ran"
    spans = [(0, 2), (2, 3), (3, 7), (7, 11), (11, 13), (13, 15)]
    ids = [5, 6, 7, 8, 9, 4]
    words = words_of(text, words_of_characters(text), ["ca", "t", "Ġthe", "Ġcat", "Ġr", "an"], ids, spans, ())
    merged = ModelText(("ca", "t", "Ġthe", "Ġcat", "Ġr", "an"), torch.tensor(ids), words=words).in_words()
    assert merged.tokens == ("cat", "the", "cat", "ran") and merged.ids[0] == merged.ids[2]
    assert len({*merged.ids.tolist()}) == 3 and merged.ids[1] == 7


def test_settings_that_exclude_words_are_one_line(tmp_path: Path, attn: Attn) -> None:
    folder = str(save_letters(tmp_path, "BERT"))
    for arguments, told in (
        (["heads", "--words"], "--words: needs --sentence or --file"),
        (["heads", "--words", "--sound", "none.wav"], "--sound: no such file: none.wav"),
        (["heads", SENTENCE, "--words", "--weighted"], "--words: cannot be combined with --weighted"),
        (["heads", SENTENCE, "--words", "--rollout"], "--words: cannot be combined with --rollout"),
        (["self", SENTENCE, "--words"], "--words: needs --model"),
        (
            ["self", SENTENCE, "--model", folder, "--words", "--explain"],
            "--words: cannot be combined with --explain",
        ),
        (["self", "a cat", "--model", folder, "--words", "--token", "4"], "--token: "),
    ):
        ended = attn(arguments)
        assert ended.code == 2 and told in ended.err and ended.err.count("\n") == 1, ended.err


def test_a_tokenizer_without_offsets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_letters(tmp_path, "BERT")
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", property(lambda self: False))
    with pytest.raises(
        UserError, match=r"^words: the tokenizer of .* does not report the characters of its tokens"
    ):
        run("heads", model=str(folder), sentence=SENTENCE, words=True)


def test_the_screen_and_json_of_words(tmp_path: Path, attn: Attn) -> None:
    folder = str(save_letters(tmp_path, "BERT"))
    ended = attn(["self", SENTENCE, "--model", folder, "--words"])
    assert ended.code == 0 and "12 words" in ended.out and "where each word looks" in ended.out
    assert "--explain" not in ended.out
    ended = attn(["heads", SENTENCE, "--model", folder, "--words"])
    assert "12 words" in ended.out.splitlines()[0] and "merged into words" in ended.out
    saved = json.loads(attn(["heads", SENTENCE, "--model", folder, "--words", "--format", "json"]).out)
    assert saved["tokens"] == [*WORDS] and saved["spec"]["words"] is True and "token_spelling" not in saved
    saved = json.loads(attn(["heads", SENTENCE, "--model", folder, "--format", "json"]).out)
    assert "words" not in saved["spec"] and saved["tokens"] == TOKENS
