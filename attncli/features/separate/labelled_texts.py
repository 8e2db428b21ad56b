"""Read labelled texts, whose parts follow one another."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool
from torch import Tensor

from attncli.errors import NO_TEXT, UserError
from attncli.models.labelled_files import MARKED, PARTS, LabelledText, without_marks
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.reading_text import read_text
from attncli.models.source_texts import Passage, SourcedText, encoded_sources
from attncli.models.writing import in_chat_template
from attncli.records.token_ids import TokenIds


@dataclass(frozen=True, kw_only=True)
class PartedReading(Reading):
    """A reading with each part's tokens, the end of the context, and the length of the answer.

    The context ends with the last part before the answer, and does not include what a chat template adds
    after that part. `num_answer` is the number of tokens in the answer, which come last.
    """

    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    context_end: int = 0
    num_answer: int = 0

    @property
    def rows(self) -> range:
        """The measured queries: those that wrote the answer or, without an answer, the last query."""
        stop = len(self.text.ids) - (self.num_answer > 0)
        return range(stop - max(1, self.num_answer), stop)

    def mask(self, part: str, num_keys: int) -> Bool[Tensor, " key"]:
        """A mask of the keys that belong to a part."""
        mask = torch.zeros(num_keys, dtype=torch.bool)
        mask[[*self.places.get(part, ())]] = True
        return mask


FRAMES: WeakKeyDictionary[Any, dict[tuple[str, ...], list[str]]] = WeakKeyDictionary()
"""For each tokenizer, the text that its chat template puts around the parts, by part names."""


class LabelledReader:
    """Reads texts with their parts; a chat template is rendered only for the first text."""

    def __init__(self, pretrained: Pretrained, *, truncate: bool = False) -> None:
        self.pretrained, self.truncate = pretrained, truncate

    def read(self, text: LabelledText) -> Reading:
        """Read plain text as a survey does, and other texts by parts. Raises UserError for invalid texts."""
        plain, marked = without_marks(text.line.text)
        if isinstance(text.line.text, TokenIds) or (len(text.parts) == 1 and not marked):
            return read_text(self.pretrained, text.line.text, key="texts", truncate=self.truncate)
        if self.pretrained.has_decoder:
            self._refuse("has an encoder and a decoder: use texts without an instruction, document or answer")
        if not self.pretrained.tokenizer.is_fast:
            self._refuse(
                "has a tokenizer that does not report token positions in the text, so parts cannot be located"
            )
        return self._parted({**text.parts, "text": plain}, marked)

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(f"texts: {self.pretrained.name} {why}")

    def _parted(self, parts: Mapping[str, str], marked: Sequence[tuple[int, int]]) -> PartedReading:
        prompt = {part: text.strip() for part, text in parts.items() if part not in ("answer", "text")}
        blanks = len(parts["text"]) - len(parts["text"].lstrip())
        prompt["text"] = parts["text"].strip()
        prompt = {part: prompt[part] for part in PARTS if part in prompt}
        is_chat = "instruction" in prompt and bool(self.pretrained.tokenizer.chat_template)
        sourced = self._in_chat(prompt) if is_chat else _joined(prompt)
        ids, spans = encoded_sources(self.pretrained, sourced)
        unknown = self.pretrained.unknown_words(sourced.text, ids, spans)
        start = next(source.start for source in sourced.sources if source.name == "text")
        passages = [
            *((source.name, source.start, source.end) for source in sourced.sources),
            *((MARKED, start + begin - blanks, start + end - blanks) for begin, end in marked),
        ]
        places: dict[str, tuple[int, ...]] = {}
        for name, begin, end in passages:
            tokens = (i for i, span in enumerate(spans) if max(span[0], begin) < min(span[1], end))
            places[name] = (*places.get(name, ()), *tokens)
        for name, part_tokens in places.items():
            if not part_tokens:
                raise UserError(f"texts: {name}: {NO_TEXT}")
        last = max(place for tokens in places.values() for place in tokens)
        answer: list[int] = []
        if "answer" in parts:
            if not is_chat:
                while spans and spans[-1][0] == spans[-1][1]:  # [SEP], which must be the last token
                    ids, spans = ids[:-1], spans[:-1]
            answer = self.pretrained.encoded(parts["answer"], add_special_tokens=False)["input_ids"]
            if not answer:
                raise UserError(f"texts: answer: {NO_TEXT}")
            unknown += self.pretrained.unknown_words(parts["answer"], answer, add_special_tokens=False)
        most = self.pretrained.most_tokens()
        if most is not None and len(ids) + len(answer) > most:
            got = len(ids) + len(answer)
            raise UserError(f"texts: must be at most {most} tokens for {self.pretrained.name} (got {got})")
        read = ModelText(
            self.pretrained.labels([*ids, *answer]), torch.tensor([*ids, *answer]), unknown=unknown
        )
        return PartedReading(read, places=places, context_end=last + 1, num_answer=len(answer))

    def _in_chat(self, parts: Mapping[str, str]) -> SourcedText:
        """Put the instruction in the system message and the rest in the user message of a chat template.

        The template is rendered for the first text with these parts, and once more to check that the result
        does not depend on the contents of the parts.
        """
        key, frames = (*parts,), FRAMES.setdefault(self.pretrained.tokenizer, {})
        if key not in frames:
            marks = {part: chr(0xF0000 + number) for number, part in enumerate(parts)}
            frame = self._rendered(marks)
            pieces = re.split("|".join(marks.values()), frame)
            if len(pieces) != len(parts) + 1 or self._rendered(parts) != _filled(pieces, parts)[0]:
                self._refuse("has a chat template that changes, repeats or omits parts")
            frames[key] = pieces
        text, sources = _filled(frames[key], parts)
        return SourcedText(text, tuple(sources), is_whole=True)

    def _rendered(self, parts: Mapping[str, str]) -> str:
        content = _joined({part: text for part, text in parts.items() if part != "instruction"}).text
        messages = [{"role": "system", "content": parts["instruction"]}, {"role": "user", "content": content}]
        return in_chat_template(messages, self.pretrained)


def _filled(pieces: Sequence[str], parts: Mapping[str, str]) -> tuple[str, list[Passage]]:
    """Insert parts between the pieces of a frame, and return the text and the place of each part."""
    text, sources = pieces[0], list[Passage]()
    for (part, content), piece in zip(parts.items(), pieces[1:], strict=True):
        sources.append(Passage(part, len(text), len(text) + len(content)))
        text += content + piece
    return text, sources


def _joined(parts: Mapping[str, str]) -> SourcedText:
    """Join the parts with a blank line between them."""
    text, sources = _filled(["", *["\n\n"] * (len(parts) - 1), ""], parts)
    return SourcedText(text, tuple(sources))
