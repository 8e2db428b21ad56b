"""Token ids, with optional labels, instead of texts: with and without a tokenizer."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import attncli
from attncli.errors import UserError
from attncli.models.loading import load_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.reading_text import read_text
from attncli.models.text_files import TextFile
from attncli.records.surveys import HeadSurvey
from attncli.records.token_ids import TokenIds
from attncli.settings.text import ids_in_file
from tests.conftest import Attn
from tests.model_folders import save_model, save_writer

IDS = [2, 4, 5, 6, 9, 3]
"""[CLS] the cat walks sat [SEP], for the tokenizer of `save_model`."""
TEXT = "the cat walks sat"
LABELS = ["<s>", "C", "[n+]", "c1", "(", "</s>"]


def without_tokenizer(folder: Path, architecture: str = "BERT") -> Path:
    save_model(folder, architecture)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    return folder


def opened(folder: Path) -> Pretrained:
    return load_pretrained(str(folder), allow_download=False, device="cpu", with_head=True)


def lines_of(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def same(a: HeadSurvey, b: HeadSurvey) -> None:
    for name in a.heads.cells:
        np.testing.assert_array_equal(a.heads.column(name), b.heads.column(name))


def test_lines_may_contain_token_ids(tmp_path: Path) -> None:
    rows = [{"ids": IDS}, {"ids": [7], "tokens": ["é"], "id": 5, "group": "x"}, {"text": "a"}]
    plain, labelled, text = TextFile(str(lines_of(tmp_path / "a.jsonl", *rows)))
    assert isinstance(plain.text, TokenIds) and plain.text.ids == (*IDS,) and plain.text.labels is None
    assert isinstance(labelled.text, TokenIds) and labelled.text.labels == ("é",)
    assert (labelled.id, labelled.group, labelled.text) == ("5", "x", '{"ids": [7], "tokens": ["é"]}')
    assert not isinstance(text.text, TokenIds)
    again = pickle.loads(pickle.dumps(labelled.text))
    assert isinstance(again, TokenIds) and (again.ids, again.labels) == ((7,), ("é",))


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"ids": []}, "ids: must hold at least one token id (got an empty list)"),
        ({"ids": "2 3"}, "ids: must be a list of token ids (got '2 3')"),
        ({"ids": [2, True]}, "ids[1]: must be a whole number from 0 (got True)"),
        ({"ids": [2, 3.0]}, "ids[1]: must be a whole number from 0 (got 3.0)"),
        ({"ids": [-1]}, "ids[0]: must be a whole number from 0 (got -1)"),
        ({"ids": [[2]]}, "ids[0]: must be a whole number from 0 (got [2])"),
        ({"ids": [2, 3], "tokens": ["a"]}, "tokens: must hold 2 labels, one per id (got 1)"),
        ({"ids": [2], "tokens": [""]}, "tokens[0]: must be text of at least one character (got '')"),
        ({"ids": [2], "tokens": [7]}, "tokens[0]: must be text of at least one character (got 7)"),
        ({"ids": [2], "tokens": ["\ud800"]}, "tokens[0]: must be valid UTF-8 text"),
        ({"ids": [2], "tokens": "a"}, "tokens: must be a list of labels (got 'a')"),
        ({"ids": [2], "text": "a"}, "ids: cannot be combined with text"),
        ({"tokens": ["a"]}, "text: is required: tokens needs ids"),
        ({"ids": [2], "token": ["a"]}, "token: unknown key"),
    ],
)
def test_errors_in_token_ids_have_line_numbers(tmp_path: Path, row: object, error: str) -> None:
    with pytest.raises(UserError) as caught:
        TextFile(str(lines_of(tmp_path / "a.jsonl", {"ids": [1]}, row))).count()
    assert caught.value.lines[0] == f"{tmp_path / 'a.jsonl'}:2: {error}"


def test_a_file_of_one_text_may_contain_ids() -> None:
    pretty = json.dumps({"ids": [2, 3], "id": 7}, indent=2)
    for name, text in {"a.json": pretty, "a.jsonl": '{"ids": [2, 3]}\n'}.items():
        read = ids_in_file(name, text)
        assert read is not None and read.ids == (2, 3)
    for name, text in {"a.txt": pretty, "a.json": '{"a": [1]}', "a.jsonl": "{"}.items():
        assert ids_in_file(name, text) is None
    with pytest.raises(ValueError, match="several lines of token ids: use `texts` for many texts"):
        ids_in_file("a.jsonl", '{"ids": [2]}\n{"ids": [3]}\n')


@pytest.mark.parametrize("architecture", ["BERT", "GPT-2", "T5"])
def test_ids_equal_the_text_that_they_encode(tmp_path: Path, architecture: str) -> None:
    model = opened(save_model(tmp_path, architecture))
    given = {"ids": IDS}
    of_text, of_ids = read_text(model, TEXT), read_text(model, given)
    assert of_ids.text.tokens == of_text.text.tokens and of_ids.text.ids.tolist() == of_text.text.ids.tolist()
    same(attncli.survey(model, given), attncli.survey(model, TEXT))
    same(attncli.survey_texts(model, [given, given]), attncli.survey_texts(model, [TEXT, TEXT]))


@pytest.mark.parametrize("as_list", [np.array, torch.tensor, tuple, lambda ids: [*np.array(ids)]])
def test_python_takes_arrays_of_ids(tmp_path: Path, as_list: Any) -> None:
    model = opened(save_model(tmp_path, "BERT"))
    reading = read_text(model, {"ids": as_list(IDS), "tokens": LABELS})
    assert reading.text.ids.tolist() == IDS and reading.text.tokens == (*LABELS,)
    with pytest.raises(UserError, match=r"^text: ids\[0\]: must be a whole number from 0 \(got True\)$"):
        read_text(model, {"ids": as_list([True])})


def test_a_folder_without_a_tokenizer_reads_only_ids(tmp_path: Path) -> None:
    with_it, model = opened(save_model(tmp_path / "a", "BERT")), opened(without_tokenizer(tmp_path / "b"))
    plain, labelled = {"ids": IDS}, {"ids": IDS, "tokens": LABELS}
    assert read_text(model, plain).text.tokens == ("2", "4", "5", "6", "9", "3")
    # Without a tokenizer, [CLS] and [SEP] are not known to be special.
    survey, expected = attncli.survey(model, labelled), attncli.survey(with_it, TEXT)
    for name in ("entropy", "distance", "previous_token", "sink_mass"):
        np.testing.assert_array_equal(survey.heads.column(name), expected.heads.column(name))
    assert survey.tokens_of_text == 6
    missing = r"^model: b has no tokenizer \(tokenizer.json is missing\): use token ids instead of text: "
    for call in (
        lambda: attncli.survey(model, TEXT),
        lambda: attncli.read_probe(model, 5, torch.Generator()),
        lambda: attncli.survey_texts(model, tmp_path / "a.txt"),
    ):
        (tmp_path / "a.txt").write_text("the cat\n")
        with pytest.raises(UserError, match=missing.replace("^", "")):
            call()


def test_special_tokens_come_from_the_config(tmp_path: Path) -> None:
    folder = without_tokenizer(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config |= {"cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    assert opened(folder).special_ids >= {0, 2, 3}
    expected = attncli.survey(opened(save_model(tmp_path / "a", "BERT")), TEXT)
    same(attncli.survey(opened(folder), {"ids": IDS}), expected)


def test_long_ids_are_truncated_like_texts(tmp_path: Path) -> None:
    model = opened(save_model(tmp_path, "BERT"))
    most = model.most_tokens()
    assert most is not None
    text = " ".join(f"w{i % 30}" for i in range(most))
    whole = model.tokenizer(text)["input_ids"]
    assert isinstance(whole, list) and len(whole) == most + 2
    with pytest.raises(
        UserError, match=rf"at most {most} tokens for .* \(got {most + 2}\): use `truncate` to cut the text"
    ):
        read_text(model, {"ids": whole})
    for side in ("right", "left"):
        model.tokenizer.truncation_side = side
        expected = read_text(model, text, truncate=True)
        labels = [f"L{place}" for place in range(most + 2)]
        reading = read_text(model, {"ids": whole, "tokens": labels}, truncate=True)
        assert reading.text.ids.tolist() == expected.text.ids.tolist()
        assert reading.left_out_notes() == expected.left_out_notes()
        assert [whole[int(label[1:])] for label in reading.text.tokens] == reading.text.ids.tolist()


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    model = opened(without_tokenizer(tmp_path / "b"))
    size = model.model.get_input_embeddings().num_embeddings
    with pytest.raises(
        UserError, match=rf"text: ids\[1\] must be below {size}, the vocabulary of b \(got 10{{18}}\)"
    ):
        read_text(model, {"ids": [2, 10**18]})
    padded = r"text: ids\[3\] is padding \(0\), which would be read like any token: remove the padding"
    with pytest.raises(UserError, match=padded):
        read_text(model, {"ids": [2, 5, 3, 0]})
    assert read_text(model, {"ids": [2, 0, 3]}).text.ids.tolist() == [2, 0, 3]
    words = attncli.words_of_characters
    with pytest.raises(UserError, match="text: must be text, not token ids, to search for `words`"):
        read_text(model, {"ids": IDS}, words=words)


def test_a_loaded_model_needs_no_tokenizer_for_ids(tmp_path: Path) -> None:
    folder = save_model(tmp_path, "BERT")
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    report = attncli.heads(model, {"ids": IDS, "tokens": LABELS})
    assert report.tokens == (*LABELS,)
    expected = attncli.heads(model, TEXT, tokenizer=tokenizer).table("heads")
    assert [row["entropy"] for row in report.table("heads")] == [row["entropy"] for row in expected]
    with pytest.raises(UserError, match=r"sentence: ids\[0\]: must be a whole number"):
        attncli.heads(model, {"ids": [-1]}, tokenizer=tokenizer)


def statistics_of(attn: Attn, *arguments: str) -> Any:
    result = attn(["heads", *arguments, "--format", "json"])
    assert result.code == 0, result.err
    return json.loads(result.out)["statistics"]


def test_lines_of_ids_equal_lines_of_texts(tmp_path: Path, attn: Attn) -> None:
    folder = str(save_model(tmp_path / "model", "BERT"))
    texts = ["the cat walks sat", "on the street", "it was tired the cat"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = lines_of(tmp_path / "ids.jsonl", *({"ids": tokenizer(text)["input_ids"]} for text in texts))
    of_texts = lines_of(tmp_path / "texts.jsonl", *({"text": text} for text in texts))
    asked = ["--model", folder, "--texts"]
    assert statistics_of(attn, *asked, str(ids)) == statistics_of(attn, *asked, str(of_texts))
    examples = ["--head", "0:1", "--examples", "1", "--sort", "entropy"]
    assert statistics_of(attn, *asked, str(ids), *examples) == statistics_of(
        attn, *asked, str(of_texts), *examples
    )


def test_stores_keep_ids_and_resume(tmp_path: Path, attn: Attn) -> None:
    folder, store = str(without_tokenizer(tmp_path / "model")), str(tmp_path / "a.db")
    rows = [{"ids": [2, 4 + i, 5, 6 + i, 3]} for i in range(7)]
    file = lines_of(tmp_path / "a.jsonl", *rows)
    asked = ["heads", "--model", folder, "--texts", str(file), "-o", store]
    assert "7 done now" in attn(asked).err
    expected = statistics_of(attn, "--model", folder, "--texts", str(file))["heads"]
    for kept, row in zip(statistics_of(attn, "--store", store)["heads"], expected, strict=True):
        assert kept.keys() >= {"entropy", "previous_token"}
        assert kept["entropy"] == pytest.approx(row["entropy"], rel=1e-5)
    # After a change of labels and with one more text, results for unchanged lines are kept.
    rows[2]["tokens"] = list("abcde")
    lines_of(file, *rows, {"ids": [2, 9, 3]})
    assert "2 done now" in attn(asked).err
    assert attn(["results", store]).code == 0


def test_ids_and_a_text_with_the_same_characters_differ(tmp_path: Path, attn: Attn) -> None:
    folder, store = str(save_model(tmp_path / "model", "BERT")), str(tmp_path / "a.db")
    (tmp_path / "a.txt").write_text('{"ids": [2, 4, 3]}\n')
    (tmp_path / "a.jsonl").write_text('{"ids": [2, 4, 3]}\n')
    for name in ("a.txt", "a.jsonl"):
        asked = ["heads", "--model", folder, "--texts", str(tmp_path / name), "-o", store]
        assert "1 done now" in attn(asked).err


def test_batches_run_experiments_on_ids(tmp_path: Path, attn: Attn) -> None:
    folder = without_tokenizer(tmp_path / "model")
    file = lines_of(tmp_path / "a.jsonl", {"ids": IDS, "tokens": LABELS}, {"ids": [2, 7, 3], "id": "x"})
    config = tmp_path / "a.yaml"
    config.write_text(f"experiment: multihead\nmodel: {folder}\nlayer: 1\n")
    reports = attn(["batch", str(config), "--file", str(file), "--format", "jsonl"]).out.splitlines()
    assert [json.loads(line)["tokens"] for line in reports] == [LABELS, ["2", "7", "3"]]
    config.write_text("experiment: self\n")
    refused = attn(["batch", str(config), "--file", str(file)])
    assert refused.code == 2
    assert f"{file}:1: sentence: token ids need model: give a model, or a text" in refused.err


def test_labels_are_escaped(tmp_path: Path, attn: Attn) -> None:
    folder = str(save_model(tmp_path / "model", "GPT-2"))
    labels = ["[/INST]", "Ġcat", "a\u202eb", "\x1b[31m", "<script>alert(7)", "é"]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"ids": [4, 5, 6, 7, 8, 9], "tokens": labels}, indent=1))
    out = attn(["self", "--model", folder, "--file", str(file)]).out
    assert "\u202e" not in out and "\x1b" not in out and "[/INST]" in out and "Ġcat" in out
    named = attn(["heads", "--model", folder, "--file", str(file), "--from", "é", "--to", "Ġcat"])
    assert named.code == 0
    page = attn(["heads", "--model", folder, "--file", str(file), "--format", "html"]).out
    assert "alert(7)" in page and "<script>alert(7)" not in page


def test_errors_on_ids_say_where_and_what_would_work(tmp_path: Path, attn: Attn) -> None:
    folder = str(without_tokenizer(tmp_path / "model"))
    long = [2, *(5 + i % 30 for i in range(600)), 3]
    file = lines_of(tmp_path / "a.jsonl", {"ids": IDS}, {"ids": [2, 9999, 3]}, {"ids": long})
    asked = ["heads", "--model", folder, "--texts", str(file)]
    notes = json.loads(attn([*asked, "--format", "json"]).out)["notes"]
    first = f"{file}:2: ids[1] must be below 61, the vocabulary of model (got 9999)"
    assert f"2 texts are left out: {first}." in notes
    notes = json.loads(attn([*asked, "--truncate", "--format", "json"]).out)["notes"]
    assert "1 text is cut to the length that the model reads." in notes
    several = attn(["heads", "--model", folder, "--file", str(file)])
    assert several.err.endswith("holds several lines of token ids: use --texts for many texts\n")
    for text in ("the cat", None):
        refused = attn(["heads", "--model", folder, *([] if text is None else [text])])
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(
            "--model: model has no tokenizer (tokenizer.json is missing): use token"
        )
    assert attn(["self", "--file", str(lines_of(tmp_path / "b.jsonl", {"ids": IDS}))]).err == (
        "--file: token ids need --model: give a model, or a text\n"
    )


def test_contexts_and_pairs_may_be_ids(tmp_path: Path, attn: Attn) -> None:
    """A decoder's context, and pairs of prompts."""
    folder = str(save_model(tmp_path / "a", "T5"))
    file = lines_of(tmp_path / "a.jsonl", {"ids": IDS, "context": {"ids": [2, 7, 8, 3]}})
    config = tmp_path / "a.yaml"
    config.write_text(f"experiment: cross\nmodel: {folder}\nlayer: 1\n")
    (report,) = attn(["batch", str(config), "--file", str(file), "--format", "jsonl"]).out.splitlines()
    assert json.loads(report)["context_tokens"] == ["[CLS]", "on", "street", "[SEP]"]
    folder = str(save_writer(tmp_path / "b", "GPT-2"))
    pairs = lines_of(tmp_path / "pairs.jsonl", {"ids": [4, 5, 6], "other": {"ids": [4, 7, 6]}})
    asked = ["ablate", "--model", folder, "--texts", str(pairs), "--method", "swap", "--format", "json"]
    swapped = attn(asked)
    assert swapped.code == 0, swapped.err
    lines_of(pairs, {"ids": [4, 5, 6], "other": {"ids": [4, -7, 6]}})
    assert "pairs.jsonl:1: other: ids[1]: must be a whole number from 0 (got -7)" in attn(asked).err
