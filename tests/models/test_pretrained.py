"""Inputs of a model: unchanged tokens, neither padded nor truncated."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers.models
import torch
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModel, BatchEncoding, GPT2Config, PreTrainedTokenizerFast

import attncli
from attncli.errors import UserError
from attncli.models.loading import kept_pretrained, load_pretrained
from attncli.models.pretrained import Pretrained
from attncli.models.probes import repeated_probe
from attncli.models.reading_text import read_text, shifted_right, tokens_of_text
from tests.model_folders import save_model


def load(folder: Path) -> Pretrained:
    return load_pretrained(str(folder), allow_download=False, device="cpu")


def test_texts_are_neither_padded_nor_truncated(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BERT", padded=6))
    assert tokens_of_text(pretrained, "the cat", "sentence").tokens == ("[CLS]", "the", "cat", "[SEP]")
    assert len(tokens_of_text(pretrained, "the cat walks on the street", "sentence").tokens) == 8
    assert tokens_of_text(pretrained, "ß", "sentence").tokens == ("[CLS]", "[UNK]", "[SEP]")


@pytest.mark.parametrize(
    ("architecture", "most"), [("BERT", 512), ("RoBERTa", 510), ("OPT", 2048), ("T5", None)]
)
def test_positions_limit_the_text_length(tmp_path: Path, architecture: str, most: int | None) -> None:
    pretrained = load(save_model(tmp_path, architecture))
    assert pretrained.most_tokens() == most
    if most is not None:
        with pytest.raises(UserError, match=f"sentence: must be at most {most} tokens"):
            tokens_of_text(pretrained, "the " * most, "sentence")
        ids = torch.full((1, most), 5)
        with torch.no_grad():
            pretrained.model(ids)
            with pytest.raises((IndexError, RuntimeError)):
                pretrained.model(torch.full((1, most + 1), 5))


def test_a_decoder_reads_the_text_after_its_start(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BART"))
    shifted = shifted_right(pretrained, tokens_of_text(pretrained, "the cat", "sentence"))
    assert shifted.tokens == ("[PAD]", "[CLS]", "the", "cat")
    assert shifted.ids.tolist() == [0, 2, 4, 5]


def test_the_probe_repeats_random_tokens(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BERT"))
    probe = repeated_probe(pretrained, 7, torch.Generator().manual_seed(1))
    again = repeated_probe(pretrained, 7, torch.Generator().manual_seed(1))
    ids = probe.ids.tolist()
    assert ids[0] == 2 and ids[1:8] == ids[8:] and len(set(ids[1:8])) == 7
    assert not set(ids[1:]) & {0, 1, 2, 3}, "no special token"
    assert ids == again.ids.tolist()
    with pytest.raises(UserError, match="num_tokens: must be at most 57"):
        repeated_probe(pretrained, 58, torch.Generator())


def test_the_last_model_is_cached_until_its_files_change(tmp_path: Path) -> None:
    one, other = save_model(tmp_path / "one", "BERT"), save_model(tmp_path / "other", "BERT")

    def kept(folder: Path) -> Pretrained:
        return kept_pretrained(str(folder), allow_download=False, device="cpu")

    first = kept(one)
    assert kept(one) is first
    assert kept(other) is not first
    again = kept(one)
    assert again is not first, "one model at a time"
    config = one / "config.json"
    config.write_text(config.read_text() + " ")
    assert kept(one) is not again
    (one / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="is not a safetensors file, or is truncated"):
        kept(one)


WORD_LEVEL = {"<pad>": 0, "<unk>": 1, "the": 2, "cat": 3}
PIECES = [("<pad>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.0), ("▁", -2.0)]
BYTES = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "word level": lambda: Tokenizer(tokenizers.models.WordLevel(WORD_LEVEL, unk_token="<unk>")),
    "WordPiece": lambda: Tokenizer(tokenizers.models.WordPiece(WORD_LEVEL, unk_token="<unk>")),
    "Unigram": lambda: Tokenizer(tokenizers.models.Unigram(PIECES, unk_id=1)),
    "bytes": lambda: Tokenizer(tokenizers.models.Unigram([*PIECES, *BYTES], unk_id=1, byte_fallback=True)),
}


def with_tokenizer(folder: Path, kind: str, *, unk_token: str | None = None) -> Pretrained:
    """A model with a tokenizer for two words."""
    made, is_unigram = TOKENIZERS[kind](), kind in ("Unigram", "bytes")
    made.pre_tokenizer = pre_tokenizers.Metaspace() if is_unigram else pre_tokenizers.WhitespaceSplit()
    given = {} if unk_token is None else {"unk_token": unk_token}
    model = AutoModel.from_config(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=300))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", **given).save_pretrained(folder)
    return load(folder)


@pytest.mark.parametrize("unk_token", ["<unk>", None])
@pytest.mark.parametrize("kind", ["word level", "WordPiece", "Unigram"])
def test_words_that_the_vocabulary_lacks_are_named(tmp_path: Path, kind: str, unk_token: str | None) -> None:
    pretrained = with_tokenizer(tmp_path, kind, unk_token=unk_token)
    (note,) = read_text(pretrained, "the zebra cat \u202eמ zebra").left_out_notes()
    has = "The text has words that are not in the model's vocabulary and are read as <unk>: "
    assert note == f"{has}'zebra', '\\u202eמ'."
    (note,) = read_text(pretrained, "the " + " ".join(f"w{i}" * 20 for i in range(7))).left_out_notes()
    assert "'w0w0w0w0w0w0w0w0w0w0w0w0…', " in note and note.endswith(" and 2 more.")


@pytest.mark.parametrize(
    ("kind", "text"), [("bytes", "the zebra"), ("word level", "the <unk> cat"), ("Unigram", "the <unk> cat")]
)
def test_bytes_and_the_name_of_the_unknown_token_are_known(tmp_path: Path, kind: str, text: str) -> None:
    reading = read_text(with_tokenizer(tmp_path, kind, unk_token="<unk>"), text)
    assert reading.left_out_notes() == []
    assert ("<unk>" in reading.text.tokens) == (kind != "bytes")


def test_unknown_words_are_found_without_character_offsets(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BERT"))
    without = type("Slow", (type(pretrained.tokenizer),), {"is_fast": False})
    pretrained.tokenizer.__class__ = without
    (note,) = read_text(pretrained, "the [UNK] zebra cat").left_out_notes()
    assert note.endswith("has a word that is not in the model's vocabulary and is read as [UNK]: 'zebra'.")


def test_unknown_words_of_two_and_of_many_texts_are_noted(tmp_path: Path) -> None:
    pretrained = load(save_model(tmp_path, "BART"))
    (note,) = read_text(pretrained, "the zebra", context="the lion").left_out_notes()
    assert note.endswith("read as [UNK]: 'zebra', 'lion'.")
    survey = attncli.survey_texts(pretrained, ["the cat", "the zebra", "the ox sat", "ox"])
    (note,) = (note for note in survey.notes if "vocabulary" in note)
    assert note.startswith(
        "3 texts have words that are not in the model's vocabulary and are read as [UNK]: "
    )
    assert note.count("'ox'") == note.count("'zebra'") == 1


ODD: dict[str, tuple[dict[str, object], str]] = {
    "negative": ({"input_ids": [2, -1]}, "returns token -1, but the model has only tokens 0 to 60"),
    "too large": ({"input_ids": [2, 61]}, "returns token 61, but the model has only tokens 0 to 60"),
    "huge": ({"input_ids": [2, 2**70]}, "returns token 1180591620717411303424"),
    "numbers": ({"input_ids": [2, 1.5]}, r"must return a list of token ids \(got \[2, 1.5\]\)"),
    "nothing": ({}, r"must return a list of token ids \(got None\)"),
    "empty": ({"input_ids": [], "offset_mapping": []}, "finds no tokens in this text"),
    "no place": ({"offset_mapping": [(0, 3), None]}, r"must place token 1 at characters .*\(got None\)"),
    "few places": ({"offset_mapping": [(0, 3)]}, "must return the character range of each of 2 tokens"),
    "beyond": ({"offset_mapping": [(0, 3), (4, 9)]}, r"from 0 to 7, the end of the text \(got \(4, 9\)\)"),
    "back": ({"offset_mapping": [(4, 7), (0, 3)]}, r"from 4 to 7, the end of the text \(got \(0, 3\)\)"),
}


@pytest.mark.parametrize("name", ODD)
def test_invalid_results_of_a_tokenizer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    changed, message = ODD[name]
    pretrained = load(save_model(tmp_path, "BERT"))
    given = {"input_ids": [4, 5], "offset_mapping": [(0, 3), (4, 7)]} | changed
    said = BatchEncoding({key: value for key, value in given.items() if changed or key != "input_ids"})
    monkeypatch.setattr(type(pretrained.tokenizer), "__call__", lambda *_, **__: said)
    with pytest.raises(UserError, match=message):
        read_text(pretrained, "the cat", words=attncli.words_of_characters)


@pytest.mark.parametrize("method", ["__call__", "convert_ids_to_tokens", "convert_tokens_to_ids"])
def test_a_tokenizer_that_raises_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    pretrained = load(save_model(tmp_path, "BERT"))

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("<b>no\nway</b>")

    monkeypatch.setattr(type(pretrained.tokenizer), method, fails)
    with pytest.raises(UserError, match=f"model: the tokenizer of {tmp_path.name} fails: "):
        read_text(pretrained, "the zebra")
