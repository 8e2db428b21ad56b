"""Texts and token ids as a model reads them: tokens, limits, special tokens, and decoder start tokens."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch

from attncli.errors import UserError
from attncli.models.architectures import decoder_start
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.words import WordsOfCharacters, words_of
from attncli.records.arguments import by, checked, shown
from attncli.records.token_ids import TokenIds, text_or_ids


def tokens_of_text(
    pretrained: Pretrained,
    text: str,
    key: str,
    *,
    truncate: bool | None = False,
    num_new: int = 0,
    is_whole: bool = False,
    words: WordsOfCharacters | None = None,
    with_spans: bool = False,
    beside_others: bool = False,
) -> ModelText:
    """Return a text's tokens, without padding, truncated only on request, on the tokenizer's truncation side.

    TokenIds are read unchanged, without a tokenizer. `num_new` positions are kept free. A whole text gets no
    special tokens around it. `words` numbers the words into which tokens are to be merged. Raises UserError
    for too few or too many tokens; the message names `key` and, unless it is None, `truncate`.
    """
    if not beside_others:
        pretrained.check_reads_text()
    if isinstance(text, TokenIds):
        if words is not None or with_spans:
            what = "`words`" if words is not None else "a needle"
            raise UserError(f"{key}: must be text, not token ids, to search for {what}")
        return _id_tokens(pretrained, text, key, truncate=truncate, num_new=num_new)
    if words is not None and not pretrained.tokenizer.is_fast:
        message = "does not report the characters of its tokens: leave `words` out"
        raise UserError(f"words: the tokenizer of {pretrained.name} {message}")
    options: dict[str, Any] = {
        "padding": False,
        "truncation": False,
        "return_offsets_mapping": words is not None or with_spans,
        "add_special_tokens": not is_whole,
    }
    encoded = pretrained.encoded(text, **options)
    ids = encoded["input_ids"]
    if not ids:
        raise UserError(f"{key}: the tokenizer of {pretrained.name} finds no tokens in this text")
    count = len(ids)
    most = truncated_length(
        pretrained, count, key, truncate=None if is_whole and not truncate else truncate, num_new=num_new
    )
    if most is not None:
        options |= {"truncation": True, "max_length": most}
        encoded = pretrained.encoded(text, **options)
        ids = encoded["input_ids"]
    tokens, special = pretrained.labels(ids), pretrained.special_ids - pretrained.unknown_ids
    words_read = None
    if words is not None:
        words_read = words_of(text, words(text), tokens, ids, encoded["offset_mapping"], special)
    spans = encoded["offset_mapping"] if with_spans else None
    return ModelText(
        tokens,
        torch.tensor(ids),
        count - len(ids),
        words_read,
        left_out_side=_cut_side(pretrained),
        spans=spans,
        unknown=pretrained.unknown_words(text, ids, **options),
    )


def _cut_side(pretrained: Pretrained) -> Literal["first", "last"]:
    """Return the side on which the tokens of a long text are cut off."""
    return "first" if getattr(pretrained.own_tokenizer, "truncation_side", "right") == "left" else "last"


def truncated_length(
    pretrained: Pretrained, count: int, key: str, *, truncate: bool | None, num_new: int
) -> int | None:
    """Return the length to which a text of `count` tokens is cut, or None if the model reads all tokens.

    Raises UserError if the text is too long and must not be cut.
    """
    most = pretrained.most_tokens()
    if most is None or count <= most - num_new:
        return None
    most -= num_new
    if not truncate or most < 1:
        besides = f" with {num_new + 1} new tokens" if num_new else ""
        message = f"must be at most {most} tokens for {pretrained.name}{besides} (got {count})"
        raise UserError(f"{key}: {message}{'' if truncate is None else ': use `truncate` to cut the text'}")
    return most


def _id_tokens(
    pretrained: Pretrained, given: TokenIds, key: str, *, truncate: bool | None, num_new: int
) -> ModelText:
    """Return the tokens with these ids, named by their labels or else as in the vocabulary.

    If ids are cut off, the special tokens at both ends stay, as in a text.
    """
    _check_ids(pretrained, given, key)
    ids, labels = [*given.ids], given.labels or pretrained.labels(given.ids)
    count = len(ids)
    most = truncated_length(pretrained, count, key, truncate=truncate, num_new=num_new)
    if most is not None:
        special = [number in pretrained.special_ids - pretrained.unknown_ids for number in ids]
        before, after = (
            next((n for n, is_special in enumerate(each) if not is_special), 0)
            for each in (special, special[::-1])
        )
        if before + after >= most:
            before = after = 0
        num_left = most - before - after
        start = before if _cut_side(pretrained) == "last" else count - after - num_left
        places = [*range(before), *range(start, start + num_left), *range(count - after, count)]
        ids, labels = [ids[place] for place in places], tuple(labels[place] for place in places)
    return ModelText(
        labels,
        torch.tensor(ids),
        count - len(ids),
        left_out_side=_cut_side(pretrained),
        is_labelled=given.labels is not None or pretrained.own_tokenizer is None,
    )


def _check_ids(pretrained: Pretrained, given: TokenIds, key: str) -> None:
    """Raise UserError for an id without an embedding in the model, and for padding at either end."""
    most = pretrained.num_ids or pretrained.model.config.get_text_config().vocab_size
    place, largest = max(enumerate(given.ids), key=lambda numbered: numbered[1])
    if largest >= most:
        raise UserError(
            f"{key}: ids[{place}] must be below {most}, the vocabulary of {pretrained.name} (got {largest})"
        )
    pad = _padding_id(pretrained)
    end = next((end for end in (0, len(given.ids) - 1) if given.ids[end] == pad), None)
    if end is not None:
        message = f"is padding ({pad}), which would be read like any token: remove the padding"
        raise UserError(f"{key}: ids[{end}] {message}")


def _padding_id(pretrained: Pretrained) -> int | None:
    """Return the id of the padding token, or None if this token also has another role."""
    roles = ("bos", "eos", "cls", "sep", "unk", "mask", "decoder_start")
    owner: Any = pretrained.own_tokenizer or pretrained.model.config
    pad = getattr(owner, "pad_token_id", None)
    role_ids = {
        getattr(each, f"{role}_token_id", None) for role in roles for each in (owner, pretrained.model.config)
    }
    return None if pad in role_ids else pad


def shifted_right(pretrained: Pretrained, text: ModelText) -> ModelText:
    """Return a decoder's input for generating this text: the start token, then all tokens but the last."""
    start = decoder_start(pretrained.model.config, getattr(pretrained.whole, "generation_config", None))
    if start is None:
        return text
    ids = torch.cat([torch.tensor([start]), text.ids[:-1]])
    (label,) = pretrained.labels([start])
    words = None if text.words is None else text.words.shifted_right(label)
    return replace(text, tokens=(label, *text.tokens[:-1]), ids=ids, words=words, spans=None)


def _opened(value: Any) -> Any:
    if not isinstance(value, Pretrained):
        raise ValueError(f"must be a model from open_model (got {shown(value)})")
    return value


OpenedModel = Annotated[Pretrained, by(_opened)]


TextOrIds = Annotated[str | Mapping[str, Any], by(text_or_ids)]
"""A string, or {"ids": [...], "tokens": [...]} with token ids and optional labels."""


@checked
def read_text(
    model: OpenedModel,
    text: TextOrIds,
    *,
    context: TextOrIds | None = None,
    key: str = "text",
    truncate: bool | None = False,
    words: WordsOfCharacters | None = None,
) -> Reading:
    """Return a text as a model reads it.

    An encoder that precedes a decoder reads the context, by default the same text.

    Instead of a text, {"ids": [...], "tokens": [...]} has token ids and optional labels. `words` numbers the
    words into which tokens are merged if results are in words. Raises UserError, with `key` in the message,
    for a text without tokens or longer than the model reads, unless `truncate` cuts the text (None: the
    message does not suggest `truncate`).
    """
    read = tokens_of_text(model, text_or_ids(text), key, truncate=truncate, words=words)
    if not model.has_decoder:
        if context is not None:
            raise UserError(f"context: {model.name} has no decoder and reads only one text")
        return Reading(read)
    encoder_text = read
    if context is not None:
        encoder_text = tokens_of_text(model, text_or_ids(context), "context", truncate=truncate, words=words)
    return Reading(shifted_right(model, read), encoder_text)


def check_made_for(pretrained: Pretrained, reading: Reading, key: str) -> Reading:
    """Return the reading. Raises UserError, at `key`, if its tokens are not the model's."""
    if reading.inputs is not None:  # of no vocabulary
        return reading
    embedding = pretrained.model.get_input_embeddings()
    vocabulary = getattr(embedding, "num_embeddings", None)
    for text in (reading.text, reading.context):
        if (
            vocabulary is not None
            and text is not None
            and len(text.ids)
            and int(text.ids.max()) >= vocabulary
        ):
            limit = f"the vocabulary of {pretrained.name} has {vocabulary} tokens"
            raise UserError(f"{key}: was read by another model: {limit}")
    return reading


def reading_for(pretrained: Pretrained, text: TextOrIds | Reading, key: str = "text") -> Reading:
    """Return the text as the model reads it, or a reading after `check_made_for`. See `read_text`."""
    if isinstance(text, Reading):
        return check_made_for(pretrained, text, key)
    return read_text(pretrained, text, key=key)
