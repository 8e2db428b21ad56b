"""Answers as tokens, with the space that the text needs, for each kind of tokenizer."""

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from attncli.errors import UserError
from attncli.models.answers import answer_forms, one_token_each
from attncli.models.pretrained import Pretrained
from tools.tiny_architectures import ARCHITECTURES

WORDS = ("The", "book", "went", "to", "Mary", "John")


def words_of(tokenizer: Tokenizer) -> Pretrained:
    # transformers leaves this without types.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")  # type: ignore[no-untyped-call]
    return Pretrained("words", ARCHITECTURES["GPT-2"].build(), fast)


def with_marks(mark: str) -> Tokenizer:
    """Each word with and without the mark for a space, and the mark on its own."""
    names = ["[UNK]", *WORDS, *(mark + word for word in WORDS), mark]
    return Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "[UNK]"))


def byte_level() -> Pretrained:
    """Like GPT-2: a space belongs to the word after it."""
    tokenizer = with_marks("\u0120")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(" ?[A-Za-z]+| +"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return words_of(tokenizer)


def sentencepiece() -> Pretrained:
    """Like Llama 2: a space is put before every text."""
    tokenizer = with_marks("\u2581")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    tokenizer.decoder = decoders.Metaspace()
    return words_of(tokenizer)


def word_piece() -> Pretrained:
    """Like BERT: spaces are not part of words."""
    tokenizer = with_marks("##")
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return words_of(tokenizer)


def likely(pretrained: Pretrained, *tokens: str) -> Tensor:
    """Log-probabilities that favour these tokens."""
    found = torch.full((len(pretrained.tokenizer),), -5.0)
    found[pretrained.tokenizer.convert_tokens_to_ids([*tokens])] = -1.0
    return found


def chosen(pretrained: Pretrained, text: str, expected: Tensor, *words: str) -> tuple[list[str], int]:
    """The labels of the tokens for words after a text, and the number of notes."""
    before = torch.tensor(pretrained.encoded(text)["input_ids"])
    named = dict(zip(("answer", "against"), words, strict=False))
    found = one_token_each(pretrained, named, before, lambda: expected)
    return [*pretrained.labels(found.compared_ids)], len(found.notes)


def test_the_form_that_is_likelier_for_all_answers_is_used() -> None:
    model = byte_level()
    text, plain, blank = "The book went to", ["Mary", "John"], ["\u0120Mary", "\u0120John"]
    assert chosen(model, text, likely(model, *blank), "Mary", "John") == (blank, 1)
    assert chosen(model, text, likely(model, *plain), "Mary", "John") == (plain, 0)
    assert chosen(model, text, likely(model, blank[1]), "Mary", "John") == (blank, 1)
    assert chosen(model, text, likely(model, *blank), "Mary") == (blank[:1], 1)


def test_an_answer_in_quotes_or_after_a_space_is_used_unchanged() -> None:
    model = byte_level()
    blank = likely(model, "\u0120Mary", "\u0120John")
    assert chosen(model, "The book went to", blank, '"Mary"', '"John"') == (["Mary", "John"], 0)
    plain = likely(model, "Mary", "John")
    assert chosen(model, "The book went to", plain, " Mary", '" John"') == (["\u0120Mary", "\u0120John"], 0)
    assert chosen(model, "The book went to", blank, " Mary", "John") == (["\u0120Mary", "\u0120John"], 1)


def test_no_space_is_added_after_a_space() -> None:
    model = byte_level()
    expected = likely(model, "\u0120Mary", "\u0120John")
    assert chosen(model, "The book went to ", expected, "Mary", "John") == (["Mary", "John"], 0)


def test_text_before_a_mask_does_not_affect_the_form() -> None:
    """RoBERTa's mask removes the space before it."""
    model = byte_level()
    expected = likely(model, "\u0120Mary")
    found = one_token_each(model, {"answer": "Mary"}, None, lambda: expected)
    assert model.labels(found.ids) == ("\u0120Mary",) and found.notes


def test_tokenizers_that_add_or_ignore_spaces_have_one_form() -> None:
    def never() -> Tensor:
        raise AssertionError("both forms are the same")

    for model, label in ((sentencepiece(), "\u2581Mary"), (word_piece(), "Mary")):
        before = torch.tensor(model.encoded("The book")["input_ids"])
        found = one_token_each(model, {"answer": "Mary"}, before, never)
        assert model.labels(found.ids) == (label,) and not found.notes


def test_a_text_that_is_one_token_only_after_a_space_gets_one() -> None:
    names = ["[UNK]", "b", "a", "g", "\u0120", "\u0120bag"]
    tokenizer = Tokenizer(
        models.BPE(
            {name: i for i, name in enumerate(names)} | {"ag": 6, "bag_": 7, "\u0120b": 8},
            [("\u0120", "b"), ("a", "g"), ("\u0120b", "ag")],
            unk_token="[UNK]",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    model = words_of(tokenizer)
    assert chosen(model, "bag", torch.zeros(9), "bag") == (["\u0120bag"], 1)
    with pytest.raises(
        UserError,
        match=r"answer: must be one token for words \(got 'b', 'ag'\): with a space before it, ' bag' is",
    ):
        chosen(model, "bag", torch.zeros(9), '"bag"')


def test_an_answer_of_several_tokens_has_both_forms() -> None:
    model = byte_level()
    assert [model.labels(form.ids) for form in answer_forms(model, "Mary went")] == [
        ("Mary", "\u0120went"),
        ("\u0120Mary", "\u0120went"),
    ]
    for exact in (" Mary went", '" Mary went"'):
        assert [form.ids for form in answer_forms(model, exact)] == [answer_forms(model, "Mary went")[1].ids]
    assert (
        len(answer_forms(sentencepiece(), "Mary")) == 1 or not answer_forms(sentencepiece(), "Mary")[0].notes
    )
    assert len(answer_forms(word_piece(), "Mary went")) == 1
