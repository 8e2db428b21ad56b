"""Answers as tokens, either as typed or with a space before them.

`Mary gave the book to` continues with ` John`, not with `John`; whichever is more likely is used. An answer
that begins with whitespace or stands in double quotes is used unchanged. A number is taken as a token id.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attncli.errors import NO_TEXT, UserError
from attncli.models.architectures import LOGITS_TO_KEEP
from attncli.models.capture import check_computed_here, run_model
from attncli.models.layers import CapturedLayer
from attncli.models.pretrained import Pretrained, Reading
from attncli.models.replay import Replay
from attncli.models.targets import Target
from attncli.models.writing import Decoding, TextPieces, prompt_inputs, whole_cache, write

LAST_TOKENS = 8
"""The number of final tokens that determine how a text ends."""


class _Typed(NamedTuple):
    """An answer without its quotes; `is_exact` is True if the text must not change."""

    text: str
    is_exact: bool

    @property
    def with_blank(self) -> str:
        return self.text if self.is_exact else f" {self.text}"


def _typed(text: str) -> _Typed:
    inner = text[1:-1]
    if text[:1] == text[-1:] == '"' and inner and '"' not in inner:
        return _Typed(inner, True)
    return _Typed(text, not text or text[0].isspace())


def ends_in_blank(pretrained: Pretrained, ids: Int[Tensor, " token"]) -> bool:
    """Return True if the text of these tokens ends in whitespace."""
    return pretrained.text_of(ids[-LAST_TOKENS:].tolist())[-1:].isspace()


def _ids(pretrained: Pretrained, text: str) -> list[int]:
    ids: list[int] = pretrained.encoded(text, add_special_tokens=False)["input_ids"]
    return ids


GivenAnswer = str | int
"""A string, or a token id."""


def one_token_each(
    pretrained: Pretrained,
    answers: Mapping[str, GivenAnswer],
    before: Int[Tensor, " token"] | None,
    log_probabilities: Callable[[], Float[Tensor, " vocabulary"]],
) -> Target:
    """Return the single token of `answer` and, if passed, of `against`.

    A space is added before all texts or before none. `before` holds the tokens that precede the texts, or is
    None if the texts replace a mask; if both forms are possible, `log_probabilities` is called for the
    predictions at that place. Raises UserError, naming the setting, for a text of several tokens and for an
    id that has no token.
    """
    texts = {key: answer for key, answer in answers.items() if isinstance(answer, str)}
    ids = {key: _checked_id(pretrained, key, each) for key, each in answers.items() if isinstance(each, int)}
    text_ids, notes = _tokens_of_texts(pretrained, texts, before, log_probabilities)
    ids |= zip(texts, text_ids, strict=True)
    return Target([ids["answer"]], ids.get("against"), notes=notes)


def _checked_id(pretrained: Pretrained, key: str, token_id: int) -> int:
    """Return the id. Raises UserError if no token has it."""
    count = pretrained.model.config.get_text_config().vocab_size
    if not 0 <= token_id < count:
        name = pretrained.name
        raise UserError(f"{key}: must be a token id of {name}, below {count} (got {token_id})")
    return token_id


def _tokens_of_texts(
    pretrained: Pretrained,
    texts: Mapping[str, str],
    before: Int[Tensor, " token"] | None,
    log_probabilities: Callable[[], Float[Tensor, " vocabulary"]],
) -> tuple[list[int], tuple[str, ...]]:
    """Return the single token of each text, and a note if a space was added."""
    if not texts:
        return [], ()
    typed = {key: _typed(text) for key, text in texts.items()}
    plain = {key: _ids(pretrained, form.text) for key, form in typed.items()}
    blank = {key: _ids(pretrained, form.with_blank) for key, form in typed.items()}
    unknown = pretrained.tokenizer.unk_token_id
    may_be_blank = all(len(ids) == 1 and ids[0] != unknown for ids in blank.values()) and plain != blank
    if before is not None and ends_in_blank(pretrained, before):
        may_be_blank = False
    is_only_way = not all(len(ids) == 1 for ids in plain.values())
    if not may_be_blank or not (is_only_way or _are_likelier(blank, plain, log_probabilities())):
        return [_the_one(pretrained, key, typed[key], ids) for key, ids in plain.items()], ()
    changed = [form.with_blank for key, form in typed.items() if plain[key] != blank[key]]
    why = "since only this form is one token" if is_only_way else "since that is more likely here"
    return [ids[0] for ids in blank.values()], (_note(changed, why),)


def _are_likelier(
    blank: Mapping[str, list[int]],
    plain: Mapping[str, list[int]],
    log_probabilities: Float[Tensor, " vocabulary"],
) -> bool:
    """Return True if the tokens with a space are together likelier than the tokens without a space."""
    sums = [
        log_probabilities[[ids[0] for ids in form.values()]].double().logsumexp(dim=0)
        for form in (blank, plain)
    ]
    return bool(sums[0] > sums[1])


def _the_one(pretrained: Pretrained, key: str, typed: _Typed, ids: Sequence[int]) -> int:
    if len(ids) != 1:
        parts = ", ".join(repr(token) for token in pretrained.labels([*ids])) or "none"
        is_one = len(_ids(pretrained, f" {typed.text}")) == 1
        hint = f": with a space before it, ' {typed.text}' is one token" if is_one else ""
        raise UserError(f"{key}: must be one token for {pretrained.name} (got {parts}){hint}")
    return ids[0]


def _note(texts: Sequence[str], why: str) -> str:
    text = "each text" if len(texts) > 1 else "the text"
    taken = " and ".join(map(repr, texts))
    plain = f'"{texts[0].strip()}"'
    added = f"A space is added before {text}, {why}: {taken}."
    return f"{added} A text in double quotes, {plain}, is used unchanged."


@torch.no_grad()
def log_probabilities_at(
    pretrained: Pretrained, reading: Reading, place: int
) -> Float[Tensor, " vocabulary"]:
    """Return ln p of every token at one position of a reading.

    Raises UserError if the model fails, and MemoryError if memory runs out.
    """
    model, inputs = pretrained.whole, pretrained.inputs([reading])
    check_computed_here(model, inputs)
    if keeps := LOGITS_TO_KEEP in inspect.signature(model.forward).parameters:
        inputs = copy(inputs)
        inputs[LOGITS_TO_KEEP] = torch.tensor([place], device=pretrained.device)
    logits: Tensor = run_model(model, inputs, lambda _layer: None)[0]
    return logits[0, 0 if keeps else place].double().log_softmax(dim=-1)


def answer_forms(pretrained: Pretrained, answer: str) -> list[Target]:
    """Return the tokens of an answer as typed and, if they differ, with a space before it.

    Names of special tokens are treated as ordinary text. Raises UserError for an empty answer and for an
    unknown token.
    """
    typed = _typed(answer)
    forms = [Target(_known_ids(pretrained, typed.text))]
    if not typed.is_exact:
        ids = _text_ids(pretrained, typed.with_blank)
        unknown = pretrained.tokenizer.unk_token_id
        if ids != forms[0].ids and unknown not in ids:
            forms.append(Target(ids, notes=(_note([typed.with_blank], "since that is more likely here"),)))
    return forms


def likelier_form(pretrained: Pretrained, forms: Sequence[Target], prompt: Int[Tensor, " token"]) -> Target:
    """Return the likelier form of an answer after a prompt, or the typed form after a space.

    Raises MemoryError if memory runs out.
    """
    if len(forms) == 1 or (not pretrained.has_decoder and ends_in_blank(pretrained, prompt)):
        return forms[0]
    expected = [
        float(Replay(pretrained.whole, prompt, form).log_probabilities(prompt).sum()) for form in forms
    ]
    return forms[expected.index(max(expected))]


def _text_ids(pretrained: Pretrained, text: str) -> list[int]:
    options = {"add_special_tokens": False, "split_special_tokens": True}
    ids: list[int] = pretrained.encoded(text, **options)["input_ids"]
    return ids


def _known_ids(pretrained: Pretrained, answer: str) -> list[int]:
    ids = _text_ids(pretrained, answer)
    if not ids:
        raise UserError(f"answer: {NO_TEXT}")
    unknown = pretrained.tokenizer.unk_token_id
    if unknown in ids and unknown in pretrained.unknown_ids:
        word = pretrained.tokenizer.unk_token
        if pretrained.tokenizer.is_fast:
            options = {"add_special_tokens": False, "return_offsets_mapping": True}
            start, end = pretrained.encoded(answer, **options)["offset_mapping"][ids.index(unknown)]
            word = answer[start:end]
        raise UserError(f"answer: {word!r} is not in the vocabulary of {pretrained.name}")
    return ids


def given_answer(pretrained: Pretrained, answer: str, prompt: Int[Tensor, " token"]) -> Target:
    """Return the target for an answer text.

    Raises UserError if the text is empty, has an unknown token, or is too long.
    """
    forms = answer_forms(pretrained, answer)
    ids = max((form.ids for form in forms), key=len)
    most, num_prompt = pretrained.most_tokens(), len(prompt)
    room = None if most is None else most + 1 - (0 if pretrained.has_decoder else num_prompt)
    if room is not None and len(ids) > room:
        raise UserError(
            f"answer: must be at most {room} tokens after a prompt of {num_prompt} (got {len(ids)})"
        )
    return likelier_form(pretrained, forms, prompt)


def write_answer(
    pretrained: Pretrained,
    prompt: Int[Tensor, " token"],
    decoding: Decoding,
    *,
    on_text: Callable[[str], None] | None = None,
    on_begin: Callable[[], None] | None = None,
) -> Target:
    """Return a model's continuation of a prompt, which may be empty, without the special tokens at its end.

    `on_begin` is called before the first token, and `on_text` receives the text as it is generated. Raises
    UserError if the model cannot generate, and MemoryError if memory runs out.
    """
    ids: list[int] = []
    pieces = None if on_text is None else TextPieces(pretrained.text_of, on_text)

    def take(token: int, _layers: Sequence[CapturedLayer]) -> None:
        if not ids and on_begin is not None:
            on_begin()
        ids.append(token)
        if pieces is not None:
            pieces.take(ids)

    whole = whole_cache(pretrained.whole)
    cache = whole.cache if whole is not None and whole.may_be_cut else None
    inputs = prompt_inputs(pretrained, prompt)
    write(pretrained.whole, inputs, decoding, take, pretrained.tokenizer, cache)
    while ids and ids[-1] in pretrained.special_ids:
        ids.pop()
    return Target(ids, cache=cache)
