"""What a model reads before it writes: the text, a question below it, a needle in it, the chat template."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attncli.errors import UserError
from attncli.experiments.reading.texts import Texts
from attncli.inputs.models.pretrained import ModelText, Pretrained, Reading
from attncli.spec.models.generate import GenerateSpec

SENTENCE_ENDS = (". ", "! ", "? ", ".\n", "!\n", "?\n", "\n")


@dataclass(frozen=True)
class Prompt(Reading):
    """With a decoder the prompt goes to the encoder; `needle` are the places of the needle in the prompt."""

    needle: tuple[int, ...] = ()

    @property
    def prompt(self) -> ModelText:
        """What was given."""
        return self.context or self.text


def read_prompt(spec: GenerateSpec, texts: Texts, pretrained: Pretrained) -> Prompt:
    """The prompt as the model reads it; UserError for what does not fit, and a needle that is not there."""
    assert texts.text is not None
    key = "file" if spec.file else "sentence"
    text = texts.text
    if spec.needle_depth is not None:
        text = _with_needle(spec, text, key, pretrained)
    if spec.question is not None:
        text = f"{text.rstrip()}\n\n{spec.question}"
    if spec.chat:
        text = _in_template(text, pretrained)
    if spec.prefill_chunk is not None and pretrained.has_decoder:
        raise UserError(f"prefill_chunk: {pretrained.name} has an encoder, which reads the prompt at once")
    num_new = 0 if pretrained.has_decoder else spec.max_new_tokens - 1
    most = pretrained.most_tokens()
    if most is not None and num_new >= most:
        raise UserError(
            f"max_new_tokens: must be at most {most} for {pretrained.name} (got {spec.max_new_tokens})"
        )
    read = pretrained.read(text, key, truncate=spec.truncate, num_new=num_new, is_whole=spec.chat)
    needle = _needle(spec, text, read, pretrained)
    if not pretrained.has_decoder:
        return Prompt(read, needle=needle)
    return Prompt(replace(read, tokens=(), ids=read.ids[:0]), read, needle)


def _in_template(text: str, pretrained: Pretrained) -> str:
    if not pretrained.tokenizer.chat_template:
        raise UserError(f"chat: {pretrained.name} has no chat template: leave chat out")
    message = [{"role": "user", "content": text}]
    whole = pretrained.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    assert isinstance(whole, str)
    return whole


def _needle(spec: GenerateSpec, text: str, read: ModelText, pretrained: Pretrained) -> tuple[int, ...]:
    """The places of the needle's tokens: those that hold a character of it where it first occurs."""
    if spec.needle is None:
        return ()
    if (tokens := spec.needle_tokens()) is not None:
        if tokens[1] > len(read.ids):
            raise UserError(
                f"needle: must end at {len(read.ids)}, the number of tokens, or before (got {spec.needle})"
            )
        return tuple(range(*tokens))
    start = text.find(spec.needle)
    if start < 0:
        raise UserError(f"needle: is not in the prompt as it stands (got {spec.needle:.60})")
    end = start + len(spec.needle)
    spans = _spans(text, pretrained, is_whole=spec.chat)[: len(read.ids)]
    found = tuple(i for i, (first, last) in enumerate(spans) if max(first, start) < min(last, end))
    if not found:
        raise UserError("needle: is in the part of the text that was cut off")
    return found


def _spans(text: str, pretrained: Pretrained, *, is_whole: bool) -> Sequence[tuple[int, int]]:
    """The characters of each token."""
    if not pretrained.tokenizer.is_fast:
        message = "does not say which characters a token covers: give token positions, as 12:20"
        raise UserError(f"needle: {pretrained.name} {message}")
    read = pretrained.tokenizer(text, return_offsets_mapping=True, add_special_tokens=not is_whole)
    spans: list[tuple[int, int]] = read["offset_mapping"]
    return spans


def _with_needle(spec: GenerateSpec, text: str, key: str, pretrained: Pretrained) -> str:
    """The text, cut where asked for, with the needle after the sentence that ends at or before that share."""
    assert spec.needle is not None and spec.needle_depth is not None
    text = text.strip()
    if spec.lengths is not None:
        spans = _spans(text, pretrained, is_whole=True)
        room = spec.lengths - len(_spans(spec.needle, pretrained, is_whole=True))
        if not 0 < room <= len(spans):
            needed = f"{len(spans)} tokens and the needle {spec.lengths - room}"
            raise UserError(f"lengths: the {key} has {needed}: {spec.lengths} cannot be made of them")
        text = text[: spans[room - 1][1]]
    place = round(spec.needle_depth * len(text))
    if place < len(text):
        place = max((text.rfind(end, 0, place) + len(end) for end in SENTENCE_ENDS), default=0)
        place = place if place > max(map(len, SENTENCE_ENDS)) else 0
    parts = text[:place].rstrip(), spec.needle, text[place:].lstrip()
    return " ".join(filter(None, parts))
