"""Tokens, named as on the screen."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from attncli.errors import UserError
from attncli.models.pretrained import ModelText, Pretrained
from attncli.models.token_names import check_tokens_named, positions_named
from tools.tiny_architectures import ARCHITECTURES

TOKENS = ("the", "\u0120cat", "\u00c2", "\u010a")
"""In GPT-2's spelling: a word, a word after a blank, a byte of a character, a line break."""


@pytest.fixture(scope="module")
def pretrained() -> Pretrained:
    # "a b" reveals how a vocabulary spells a space.
    vocabulary = {name: i for i, name in enumerate(("[UNK]", *TOKENS, "a", "\u0120b"))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # transformers leaves this without types.
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")  # type: ignore[no-untyped-call]
    return Pretrained("words", ARCHITECTURES["GPT-2"].build(), fast)


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText(TOKENS, torch.tensor([1, 2, 3, 4]))


@pytest.mark.parametrize(
    ("name", "position"),
    [("the", 0), ("cat", 1), ("\u00b7cat", 1), ("\u0120cat", 1), ("<0xC2>", 2), ("\u00c2", 2), ("\u21b5", 3)],
)
def test_a_token_is_named_as_screens_and_vocabularies_spell_it(
    pretrained: Pretrained, text: ModelText, name: str, position: int
) -> None:
    assert positions_named([name], text, pretrained) == {position: name}


def test_a_message_lists_tokens_as_screens_show_them(pretrained: Pretrained, text: ModelText) -> None:
    with pytest.raises(UserError, match=r"its tokens are the, cat, <0xC2>, \u21b5$"):
        check_tokens_named(["dog"], [text], pretrained, key="to")
