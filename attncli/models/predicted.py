"""The predictions for a text (its tokens, its masked tokens, or an answer after it), and a needle."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Int
from torch import Tensor

from attncli.errors import UserError
from attncli.models.answers import GivenAnswer, log_probabilities_at, one_token_each
from attncli.models.pretrained import FIRST_WORD_ID, ModelText, Pretrained, Reading, reader_of
from attncli.models.reading_text import tokens_of_text
from attncli.models.targets import Target
from attncli.models.token_names import checked_position
from attncli.system.plain_text import counted

MASKED_SHARE = 0.15
"""The share of masked tokens, as in BERT's training: Devlin et al. 2019 (1810.04805), 3.1."""
NO_PLACES = torch.empty(0, dtype=torch.long)


@dataclass(frozen=True)
class Predicted(Reading):
    """A reading, with the places of its predictions and the target token of each.

    A model without a head makes no predictions. If `answer` is set, the answer is the only predicted token.
    `other` is another prompt with as many tokens, whose head outputs may be swapped in: at all tokens, or at
    the position `token`.
    """

    places: Int[Tensor, " place"] = NO_PLACES
    targets: Int[Tensor, " place"] = NO_PLACES
    answer: Target | None = None
    other: "Predicted | None" = None
    token: int | None = None

    @property
    def num_places(self) -> int:
        """The number of predicted tokens."""
        return len(self.places)


def predicted_reading(
    reading: Reading,
    pretrained: Pretrained,
    generator: torch.Generator,
    *,
    answer: GivenAnswer | None = None,
    against: GivenAnswer | None = None,
    key: str = "text",
) -> Predicted:
    """Return the predictions for a text. Raises UserError, which names `key`, if nothing can be predicted.

    A model that predicts next tokens predicts every token but the first; for the repeated probe, it predicts
    the second copy except for its first token, which cannot be inferred. For an encoder, a random share of
    the tokens is masked. With an answer, only the answer is predicted, after the text or at its mask.
    """
    if against is not None and answer is None and pretrained.predicts is not None:
        raise UserError("against: needs `answer`, with which `against` is compared")
    if answer is not None:
        return _with_answer(reading, pretrained, answer, against, key)
    if pretrained.predicts is None:
        return _without_predictions(reading, pretrained.name)
    if pretrained.predicts == "masked":
        return _masked(pretrained, reading, key, generator)
    return _with_next_tokens(reading, key)


def _predicted(
    reading: Reading,
    *,
    places: Int[Tensor, " place"] = NO_PLACES,
    targets: Int[Tensor, " place"] = NO_PLACES,
    answer: Target | None = None,
) -> Predicted:
    """Return a reading with its predictions."""
    what_is_read = {field.name: getattr(reading, field.name) for field in fields(Reading)}
    return Predicted(**what_is_read, places=places, targets=targets, answer=answer)


def _without_predictions(reading: Reading, name: str) -> Predicted:
    """Return a reading for a model without a head.

    Raises UserError if the model's runs could not be compared.
    """
    if reading.origin is not None and not reading.part:
        reading.origin.check_lacks_heads(name, reading.shapes)
    return _predicted(reading)


def _with_answer(
    reading: Reading, pretrained: Pretrained, answer: GivenAnswer, against: GivenAnswer | None, key: str
) -> Predicted:
    """Return predictions with a one-token answer as the only target.

    Raises UserError if there is no place for the answer, or if the answer is not one token.
    """
    name, ids, is_next = pretrained.name, reading.text.ids, pretrained.predicts == "next"
    if pretrained.predicts is None:
        raise UserError(f"answer: {name} has no head that predicts tokens")
    mask = pretrained.tokenizer.mask_token_id
    if not is_next and mask is None:
        raise UserError(f"answer: the tokenizer of {name} has no mask token, which the answer would replace")
    place = torch.tensor([len(ids) - 1]) if is_next else (ids == mask).nonzero().flatten()
    if len(place) != 1:
        token = pretrained.tokenizer.mask_token
        raise UserError(
            f"{key}: must contain exactly one {token}, which the answer replaces (got {len(place)})"
        )
    target = one_token_each(
        pretrained,
        {"answer": answer} | ({} if against is None else {"against": against}),
        ids if is_next else None,
        lambda: log_probabilities_at(pretrained, reading, int(place)),
    )
    return _predicted(reading, places=place, targets=torch.tensor(target.ids), answer=target)


def check_num_tokens(count: int, least: int, key: str) -> None:
    """Raise UserError if there are too few tokens for one to predict another."""
    if count < least:
        raise UserError(f"{key}: must be at least {least} tokens, so that one predicts another (got {count})")


def _with_next_tokens(reading: Reading, key: str) -> Predicted:
    """Predict every token but the first or, for a decoder's generated words, every token of these words.

    For the repeated probe, predict the tokens of the second copy without its first one.
    """
    ids, repeated = reading.text.ids, reading.repeat
    first = max(1, reading.num_before) if repeated is None else len(ids) - repeated + 1
    if first >= len(ids):
        key, count = (key, len(ids)) if repeated is None else ("num_tokens", repeated)
        check_num_tokens(count, 2, key)
    predicted = torch.arange(first, len(ids))
    if reading.origin is not None:  # only words are predicted
        predicted = predicted[ids[first:] < FIRST_WORD_ID]
    return _predicted(reading, places=predicted - 1, targets=ids[predicted])


def predicted_pair(
    reading: Reading,
    other: Reading,
    pretrained: Pretrained,
    generator: torch.Generator,
    *,
    answer: GivenAnswer | None = None,
    against: GivenAnswer | None = None,
    token: int | None = None,
    key: str = "text",
) -> Predicted:
    """Return the predictions for a prompt in which heads get their outputs on another prompt.

    The outputs are swapped at all tokens, or at the position `token`. Encoders have the same tokens masked in
    both prompts. Raises UserError if the prompts differ in length, and whenever `predicted_reading` does.
    """
    state = generator.get_state()
    here = predicted_reading(reading, pretrained, generator, answer=answer, against=against, key=key)
    generator.set_state(state)
    there = predicted_reading(other, pretrained, generator, answer=answer, against=against, key="other")
    return _swapped(here, there, token)


def predicted_of(
    reading: Reading,
    other: Reading | None,
    pretrained: Pretrained,
    generator: torch.Generator,
    *,
    answer: GivenAnswer | None = None,
    against: GivenAnswer | None = None,
    token: int | None = None,
) -> Predicted:
    """Return the predictions for a prompt, with another prompt if one is passed.

    A Predicted is returned unchanged.
    """
    if isinstance(reading, Predicted):
        return reading
    if other is None:
        reader = reader_of(pretrained, reading)
        return predicted_reading(reading, reader, generator, answer=answer, against=against)
    return predicted_pair(reading, other, pretrained, generator, answer=answer, against=against, token=token)


def check_answers_alike(readings: Sequence[Reading]) -> None:
    """Raise UserError if only some of the texts have an answer, an `against`, or a token to swap at."""
    predicted = [reading if isinstance(reading, Predicted) else None for reading in readings]
    if len({each and each.answer and each.answer.against is None for each in predicted}) > 1:
        raise UserError("texts: answer and against must be on every line or on none")
    if len({each and each.token is None for each in predicted}) > 1:
        raise UserError("texts: token must be on every line or on none")


def check_swap(
    method: str, num_texts: int, num_others: int | None, token: int | str | None, into: str | None
) -> None:
    """Raise UserError if the settings of a swap between two prompts are incomplete or used without a swap."""
    if method != "swap":
        for key, value in {"other": num_others, "token": token, "into": into}.items():
            if value is not None:
                raise UserError(f"{key}: needs method swap (got {method})")
    elif num_others is None:
        raise UserError("other: must be another prompt for method swap (got none)")
    elif num_others != num_texts:
        raise UserError(f"other: must have {counted(num_texts, 'prompt')}, one per text (got {num_others})")


def _swapped(reading: Predicted, other: Predicted, token: int | None) -> Predicted:
    """Return a prompt with the prompt whose head outputs are swapped in.

    Raises UserError if the lengths differ.
    """
    counts = len(reading.text.ids), len(other.text.ids)
    if counts[0] != counts[1]:
        raise UserError(f"other: must have {counts[0]} tokens, as many as the text (got {counts[1]})")
    if reading.answer is not None:  # both prompts are followed by the same tokens
        other = replace(other, targets=reading.targets, answer=reading.answer)
    token = None if token is None else checked_position(token, counts[0], "token")
    return replace(reading, other=other, token=token)


def _masked(pretrained: Pretrained, reading: Reading, key: str, generator: torch.Generator) -> Predicted:
    """Mask some, but at least one, of the tokens that are not special."""
    ids, mask = reading.text.ids, pretrained.tokenizer.mask_token_id
    if mask is None:
        raise UserError(f"model: the tokenizer of {pretrained.name} has no mask token")
    words = torch.tensor([i for i, token in enumerate(ids.tolist()) if token not in pretrained.special_ids])
    if not len(words):
        raise UserError(f"{key}: must contain a token to predict that is not special")
    count = max(1, round(MASKED_SHARE * len(words)))
    places = words[torch.randperm(len(words), generator=generator)[:count]].sort().values
    hidden = ids.clone()
    hidden[places] = mask
    tokens = [*(reading.text.tokens if reading.text.is_labelled else pretrained.labels(ids.tolist()))]
    for place in places.tolist():
        (tokens[place],) = pretrained.labels([mask])
    text = replace(reading.text, tokens=tuple(tokens), ids=hidden)
    return Predicted(text, reading.context, places, ids[places], repeat=reading.repeat)


@dataclass(frozen=True)
class Judged(Predicted):
    """A reading with predictions; `needle` holds the indices of the predictions of the needle.

    A reading that is part of a longer text begins at the token `offset` of that text. `key` is the setting or
    argument with the text.
    """

    needle: tuple[int, ...] = ()
    offset: int = 0
    key: str = "text"

    def needle_positions(self) -> list[int]:
        """The positions at which the needle is predicted, each directly before a token of the needle."""
        return [int(self.places[number]) for number in self.needle]


def read_judged(
    pretrained: Pretrained,
    text: str,
    *,
    needle: str | None = None,
    truncate: bool = False,
    every: int | None = None,
    key: str = "text",
) -> Judged:
    """Read a text whose tokens are predicted from earlier ones; the last needle is judged separately.

    A needle that occurs only once is appended to the text, as the answer that the text asks for. With
    `every`, the text may be longer than the model can read. Raises UserError, with `key` in the message, for
    a text that the model cannot read, and for a missing needle.
    """
    if needle is not None:
        text = _ending_in(text, needle, pretrained)
    if every is None:
        read = tokens_of_text(pretrained, text, key, truncate=truncate, with_spans=needle is not None)
    else:
        encoded = pretrained.encoded(text, truncation=False, return_offsets_mapping=needle is not None)
        ids = encoded["input_ids"]
        spans = encoded.get("offset_mapping")
        unknown = pretrained.unknown_words(text, ids, spans)
        read = ModelText(pretrained.labels(ids), torch.tensor(ids), spans=spans, unknown=unknown)
    judged = judged_reading(Reading(read), pretrained, key=key)
    if needle is None:
        return judged
    start, spans = text.rindex(needle), read.spans or ()
    end = start + len(needle)
    tokens = [at for at, (first, last) in enumerate(spans) if max(first, start) < min(last, end)]
    if not tokens or read.left_out:
        raise UserError("needle: is in the part of the text that was cut off")
    positions: list[int] = judged.places.tolist()
    return replace(judged, needle=tuple(positions.index(at - 1) for at in tokens))


def _ending_in(text: str, needle: str, pretrained: Pretrained) -> str:
    if not pretrained.tokenizer.is_fast:
        raise UserError(f"needle: {pretrained.name} does not report the characters of a token")
    count = text.count(needle)
    if not count or not needle.strip():
        raise UserError(f"needle: must occur verbatim in the text (got {needle:.60})")
    if text.startswith(needle) and count == 1 and text.strip() == needle.strip():
        raise UserError("needle: must be only a part of the text, and the text must end by asking for it")
    if count > 1:
        return text
    blank = "" if text[-1:].isspace() or needle[:1].isspace() else " "
    return f"{text}{blank}{needle}"


def judged_reading(reading: Reading, pretrained: Pretrained, *, key: str = "text") -> Judged:
    """Return the predictions for a reading.

    Raises UserError for a model without a cache of generated tokens.
    """
    if pretrained.predicts != "next" or pretrained.has_decoder:
        why = "has an encoder" if pretrained.has_decoder else "does not predict next tokens"
        raise UserError(f"model: {pretrained.name} {why}: a smaller cache needs a decoder-only model")
    predicted = predicted_reading(reading, pretrained, torch.Generator(), key=key)
    return Judged(**vars(predicted), key=key)
