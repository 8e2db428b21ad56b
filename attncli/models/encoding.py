"""Checked results of a tokenizer: ids, places, and the words without a token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tokenizers.models import Unigram
from transformers import BatchEncoding, PreTrainedTokenizerBase

from attncli.errors import UserError, one_line_reason
from attncli.models.folder import panics_in_one_line
from attncli.models.words import Spans, UnknownWord

IN_NO_VOCABULARY = "\U0010fffd"
"""A private-use character.

A Unigram model, whose file has only the id of its unknown token, turns the character into that token.
"""


@contextmanager
def tokenizer_errors(name: str) -> Iterator[None]:
    """Turn a tokenizer's error into a UserError, since a damaged tokenizer may fail in any way."""
    try:
        with panics_in_one_line():
            yield
    except Exception as error:
        raise UserError(f"model: the tokenizer of {name} fails: {one_line_reason(error)}") from None


def check_encoded(read: BatchEncoding, texts: Sequence[str], name: str, *, num_ids: int | None) -> None:
    """Raise UserError unless ids belong to the model and places are ordered character ranges of the texts."""
    ids: Any = read.get("input_ids")
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise UserError(f"model: the tokenizer of {name} must return a list of token ids (got {ids!r:.60})")
    most = num_ids if num_ids is not None else 2**63
    if (wrong := next((each for each in ids if not 0 <= each < most), None)) is not None:
        message = f"returns token {wrong}, but the model has only tokens 0 to {most - 1}"
        raise UserError(f"model: the tokenizer of {name} {message}")
    if "offset_mapping" not in read:
        return
    spans: Any = read["offset_mapping"]
    if not isinstance(spans, list) or len(spans) != len(ids):
        message = f"must return the character range of each of {len(ids)} tokens (got {spans!r:.60})"
        raise UserError(f"model: the tokenizer of {name} {message}")
    length, before = max(map(len, texts)), 0
    for place, span in enumerate(spans):
        if (
            not isinstance(span, tuple | list)
            or [type(each) for each in span] != [int, int]
            or not 0 <= span[0] <= span[1] <= length
            or (len(texts) == 1 and before > span[0] != span[1])
        ):
            must = f"from {before} to {length}, the end of the text"
            message = f"must place token {place} at characters {must} (got {span!r:.60})"
            raise UserError(f"model: the tokenizer of {name} {message}")
        before = max(before, span[0])


def unknown_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Return the ids and names of the unknown tokens, from the tokenizer's settings and file."""
    names = {tokenizer.unk_token}
    if tokenizer.is_fast:
        model: Any = tokenizer.backend_tokenizer.model
        names.add(getattr(model, "unk_token", None))
        if isinstance(model, Unigram):
            with suppress(Exception):  # it has no unknown token
                (token,) = model.tokenize(IN_NO_VOCABULARY)  # several tokens stand for bytes
                names.add(model.id_to_token(token.id))
    ids: dict[Any, str] = {tokenizer.convert_tokens_to_ids(name): name for name in names if name}
    return {number: name for number, name in ids.items() if number is not None}


def unknown_words(
    text: str,
    ids: Sequence[int],
    unknown: Mapping[int, str],
    spans: Spans | None,
    encode: Callable[[str], BatchEncoding],
) -> tuple[UnknownWord, ...]:
    """Return the words of a text that became an unknown token, except words that are the name of that token.

    If the characters of the tokens are not known, words are encoded one by one.
    """
    names = [*unknown.values()]
    if spans is not None:
        read = [(text[start:end], each) for (start, end), each in zip(spans, ids, strict=True)]
    else:
        for name in names:
            text = text.replace(name, " ")
        read = [(word, each) for word in dict.fromkeys(text.split()) for each in encode(word)["input_ids"]]
    return tuple(
        (word.strip() or word, unknown[each])
        for word, each in read
        if each in unknown and word and word.strip() not in names
    )
