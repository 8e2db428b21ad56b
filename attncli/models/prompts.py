"""Prompts for a model that generates: a text, possibly in a chat template, with a needle or an answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attncli.errors import UserError
from attncli.models.answers import answer_forms, likelier_form
from attncli.models.chat_places import Span, placed_chat
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.reading_text import tokens_of_text
from attncli.models.targets import Target
from attncli.models.writing import in_chat_template

SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n")


@dataclass(frozen=True)
class Prompt(Reading):
    """A prompt, with the positions of the needle.

    In a model with an encoder and a decoder, the encoder reads it.

    The model reads the `answer` after the prompt, or generates one if `answer` is None.
    """

    needle: tuple[int, ...] = ()
    answer: Target | None = None

    @property
    def prompt(self) -> ModelText:
        """The tokens of the prompt."""
        return self.context or self.text


def read_prompt(
    pretrained: Pretrained,
    text: str,
    *,
    max_new_tokens: int = 24,
    answer: str | None = None,
    question: str | None = None,
    chat: bool = False,
    needle: str | tuple[int, int] | None = None,
    needle_depth: float | None = None,
    length: int | None = None,
    truncate: bool | None = False,
    key: str = "text",
) -> Prompt:
    """Return the prompt as a model reads it: a text, optionally with a question and in a chat template.

    If an `answer` is passed, which the model reads after the prompt, room is left for its tokens. The needle
    is given by its text (searched only in the message of a chat), or by its first token and the token after
    its last. With `needle_depth`, the needle is first inserted at that depth (0 is the start, 1 the end) into
    as much of the text as makes `length` tokens together with the needle. Raises UserError, with `key` in the
    message, if the prompt does not fit, or the needle is missing.
    """
    if needle_depth is not None:
        assert isinstance(needle, str)
        text = _with_needle(text, needle, needle_depth, length, key, pretrained)
    if question is not None:
        text = f"{text.rstrip()}\n\n{question}"
    messages = [Span(0, len(text))]
    if chat and isinstance(needle, str):
        text, messages = _placed_message(text, pretrained)
    elif chat:
        text = in_chat_template(text, pretrained)
    forms = [] if answer is None else answer_forms(pretrained, answer)
    ids = max((form.ids for form in forms), key=len, default=[])
    num_new = 0 if pretrained.has_decoder else (len(ids) or max_new_tokens) - 1
    most = pretrained.most_tokens()
    if ids and most is not None and num_new >= most:
        raise UserError(f"answer: must be at most {most} tokens for {pretrained.name} (got {len(ids)})")
    if most is not None and num_new >= most:
        raise UserError(
            f"max_new_tokens: must be at most {most} for {pretrained.name} (got {max_new_tokens})"
        )
    if isinstance(needle, str):
        _check_spans(pretrained)
    read = tokens_of_text(
        pretrained,
        text,
        key,
        truncate=truncate,
        num_new=num_new,
        is_whole=chat,
        with_spans=isinstance(needle, str),
    )
    places = () if needle is None else _needle_places(needle, text, messages, read)
    target = likelier_form(pretrained, forms, read.ids) if forms else None
    prompt = Prompt(read, needle=places, answer=target)
    if not pretrained.has_decoder:
        return prompt
    return replace(prompt, text=replace(read, tokens=(), ids=read.ids[:0]), context=read)


def reading_prompt(reading: Reading, pretrained: Pretrained) -> Prompt:
    """Return the prompt of a reading without text, for a model that describes what it reads.

    Raises UserError if the model cannot describe the reading.
    """
    origin = reading.text.origin
    if origin is None:
        alone = "" if reading.origin is None else f" of only a {reading.origin.what}"
        raise UserError(f"text: must be text, or a reading{alone}")
    if not pretrained.has_decoder:
        setting = origin.kind.setting
        raise UserError(f"{setting}: {pretrained.name} has no decoder that could describe a {origin.what}")
    nothing = ModelText((), reading.text.ids[:0])
    return Prompt(nothing, reading.text, inputs=reading.inputs)


def _placed_message(text: str, pretrained: Pretrained) -> tuple[str, list[Span]]:
    """Return a text as a message in the model's chat template, and its spans in the prompt.

    Raises UserError for a template that changes its messages, which makes the spans unknown.
    """
    placed = placed_chat([{"role": "user", "content": text}], pretrained)
    ((spans,),) = placed.parts
    if not spans:
        message = "changes the message: use token positions, such as 12:20"
        raise UserError(f"needle: the chat template of {pretrained.name} {message}")
    return placed.text, spans


def _needle_places(
    sought: str | tuple[int, int], text: str, messages: Sequence[Span], read: ModelText
) -> tuple[int, ...]:
    """Return the positions of the tokens that contain characters of the needle.

    Messages are spans of the text; the first occurrence of the needle in a message counts.
    """
    if isinstance(sought, tuple):
        if sought[1] > len(read.ids):
            got = f"(got {sought[0]}:{sought[1]})"
            raise UserError(f"needle: must end at or before {len(read.ids)}, the number of tokens {got}")
        return tuple(range(*sought))
    starts = (text.find(sought, *message) for message in messages)
    start = next((start for start in starts if start >= 0), -1)
    if start < 0:
        raise UserError(f"needle: must occur verbatim in the prompt (got {sought:.60})")
    end = start + len(sought)
    assert read.spans is not None
    places = tuple(i for i, (first, last) in enumerate(read.spans) if max(first, start) < min(last, end))
    # Special tokens cover no characters.
    ends = [place for first, last in read.spans if first < last for place in (first, last)]
    needle = text[max(start, min(ends, default=0)) : min(end, max(ends, default=0))]
    if not places or (read.left_out and sought.strip() not in needle):
        raise UserError("needle: is in the part of the text that was cut off")
    return places


def _check_spans(pretrained: Pretrained) -> None:
    """Raise UserError for a tokenizer that does not report the characters of a token."""
    if not pretrained.tokenizer.is_fast:
        message = "does not report the characters of a token: use token positions, such as 12:20"
        raise UserError(f"needle: {pretrained.name} {message}")


def _spans(text: str, pretrained: Pretrained) -> Sequence[tuple[int, int]]:
    """Return the characters of each token, without special tokens."""
    _check_spans(pretrained)
    read = pretrained.encoded(
        text, return_offsets_mapping=True, add_special_tokens=False, padding=False, truncation=False
    )
    spans: list[tuple[int, int]] = read["offset_mapping"]
    return spans


def _with_needle(
    text: str, needle: str, depth: float, length: int | None, key: str, pretrained: Pretrained
) -> str:
    """Insert the needle after the last sentence that ends within the first share `depth` of the text.

    If `length` is set, the text is first cut to this number of tokens.
    """
    text = text.strip()
    if length is not None:
        spans = _spans(text, pretrained)
        room = length - len(_spans(needle, pretrained))
        if not 0 < room <= len(spans):
            least, most = length - room + 1, length - room + len(spans)
            raise UserError(
                f"lengths: must be from {least} to {most} for this {key} and needle (got {length})"
            )
        text = text[: spans[room - 1][1]]
    place = round(depth * len(text))
    if place < len(text):
        place = max((text.rfind(end, 0, place) + len(end) for end in SENTENCE_ENDS), default=0)
        place = place if place > max(map(len, SENTENCE_ENDS)) else 0
    parts = text[:place].rstrip(), needle, text[place:].lstrip()
    return " ".join(filter(None, parts))
