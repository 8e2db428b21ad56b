"""Texts with sources: parts of a text, documents above a question, or turns of a chat."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool

from attncli.errors import UserError
from attncli.models.chat_places import Span, placed_chat
from attncli.models.pretrained import ModelText, Pretrained, Reading
from attncli.models.text_files import LineFile
from attncli.system.plain_text import parsed_json

Split = Literal["word", "sentence", "line", "paragraph", "turn"]


class Passage(NamedTuple):
    """A character range of a text, its name (such as doc2), and its title.

    `again` holds its other places if a chat template repeats the passage.
    """

    name: str
    start: int
    end: int
    title: str = ""
    again: tuple[Span, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """All places of the passage in the text."""
        return Span(self.start, self.end), *self.again

    def moved_to(self, spans: Sequence[Span]) -> "Passage":
        """Return the source, moved to other places."""
        return self._replace(start=spans[0].start, end=spans[0].end, again=tuple(spans[1:]))


@dataclass(frozen=True)
class SourcedText:
    """A text and its sources, in order.

    `is_whole` is True if the text is in a chat template, which adds special tokens. `apart` is a question
    that an encoder reads alone or as the first text of a pair; `asking` is a question at the end of the text
    that does not count as a source. Whitespace between two sources belongs to the second source; any other
    text between them stays when sources are removed.
    """

    text: str
    sources: tuple[Passage, ...]
    is_whole: bool = False
    apart: str | None = None
    asking: str = ""

    def texts(self) -> list[str]:
        """Return the text of each source."""
        return [self.text[source.start : source.end] for source in self.sources]

    def with_only(self, kept: Sequence[bool] | Bool[torch.Tensor, " source"]) -> "SourcedText":
        """Return the text with only some of its sources, without whitespace before the first source."""
        places = sorted((span, number) for number, source in enumerate(self.sources) for span in source.spans)
        pieces, end = [self.text[: places[0][0].start]], places[0][0].start
        length, is_first = end, True
        spans: dict[int, list[Span]] = {}
        for span, number in places:
            gap = self.text[end : span.start]
            if gap.strip():
                pieces.append(gap)
                length, gap, is_first = length + len(gap), "", True
            if kept[number]:
                gap = "" if is_first else gap
                start = length + len(gap)
                length = start + span.end - span.start
                spans.setdefault(number, []).append(Span(start, length))
                pieces += gap, self.text[span.start : span.end]
                is_first = False
            end = span.end
        left = tuple(self.sources[number].moved_to(spans[number]) for number in sorted(spans))
        return replace(self, text="".join([*pieces, self.text[end:]]), sources=left)

    def with_question_apart(self, question: str) -> "SourcedText":
        """Return the text without its question, which an encoder reads separately."""
        return replace(self, text=self.text.removesuffix(f"\n\n{question}"), apart=question)

    def in_template(self, pretrained: Pretrained) -> "SourcedText":
        """Return the text as a user's message, in the model's chat template."""
        messages = [{"role": "user", "content": self.text}]
        parts = [span for source in self.sources for span in source.spans]
        placed = placed_chat(messages, pretrained, parts=[sorted(parts)])
        where = dict(zip(sorted(parts), placed.parts[0], strict=True))
        if not all(where.values()):
            raise UserError(f"chat: the chat template of {pretrained.name} omits or changes the text")
        sources = (
            source.moved_to([moved for span in source.spans for moved in where[span]])
            for source in self.sources
        )
        return SourcedText(placed.text, tuple(sources), is_whole=True, asking=self.asking)


SENTENCE_END = re.compile(r"[.!?][\"')\]\u2019\u201d]*\s+")
WORD_END = re.compile(r"\s+")
LINE_END, PARAGRAPH_END = re.compile(r"\n"), re.compile(r"\n[^\S\n]*\n\s*")
TURN_START = re.compile(r"^(?=[^\W\d][\w .-]{0,30}:(?:\s|$))", re.MULTILINE)
"""Matches `Ann Lee: ` at the start of a line."""
ENDS: Mapping[Split, re.Pattern[str]] = {
    "word": WORD_END,
    "sentence": SENTENCE_END,
    "line": LINE_END,
    "paragraph": PARAGRAPH_END,
    "turn": TURN_START,
}


def _spans(text: str, split: Split) -> Iterator[tuple[int, int]]:
    """Return the characters of each part, without surrounding whitespace.

    A sentence also ends at the end of a line.
    """
    ends = {match.end() for match in ENDS[split].finditer(text)}
    if split == "sentence":
        ends |= {match.end() for match in LINE_END.finditer(text)}
    for start, end in pairwise(sorted({0, *ends, len(text)})):
        part = text[start:end]
        if part.strip():
            yield start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def split_text(text: str, split: Split, *, question: str | None = None, key: str = "file") -> SourcedText:
    """Return a text whose sentences, lines, paragraphs or turns are the sources, with a question below it.

    Raises UserError, with `key` in the message, for a text without any of these.
    """
    spans = list(_spans(text, split))
    if not spans:
        raise UserError(f"{key}: must contain a {split} (got an empty text)")
    sources = tuple(Passage(f"{split}{number}", *span) for number, span in enumerate(spans, start=1))
    below = "" if question is None else f"\n\n{question}"
    return SourcedText(text.rstrip() + below if below else text, sources)


END = re.compile(r"[.!?\u2026][\"')\]\u2019\u201d]*$")
"""Matches text at the end of a sentence or question."""
ASKING: Sequence[Split] = ("sentence", "line", "paragraph")
"""Parts that may ask."""
LEAST_SPLIT = 2
"""The fewest sources in a text that may end in a question, since a single source cannot be ranked."""


def without_asking(sourced: SourcedText, least: int = LEAST_SPLIT) -> SourcedText:
    """Return a text whose last parts do not count as sources if they ask something.

    An example is `In which city? Answer: Karl works in`. The last part is excluded if it ends in a colon, or
    if it is unfinished while the part before it is finished; so is a question before that part. The text is
    unchanged if fewer than `least` sources would remain.
    """
    ends = [match[0] if (match := END.search(text)) else "" for text in sourced.texts()]
    count, last = len(ends), sourced.texts()[-1]
    if not ends[-1] and (any(ends[-2:-1]) or last.endswith(":")):
        count -= 1
    if count and "?" in ends[count - 1]:
        count -= 1
    if count == len(ends) or count < least:
        return sourced
    return replace(
        sourced, sources=sourced.sources[:count], asking=sourced.text[sourced.sources[count].start :].strip()
    )


def with_documents(
    documents: Sequence[tuple[str, str]], question: str, split: Split | None = None
) -> SourcedText:
    """Return titled documents with a question below them; the sources are the documents or their parts.

    Raises UserError for an empty document.
    """
    text, sources = "", list[Passage]()
    for number, (title, document) in enumerate(documents, start=1):
        if not document.strip():
            raise UserError(f"document: {title}: is empty")
        text += "\n\n" if text else ""
        start = len(text)
        text += document.strip()
        if split is None:
            sources.append(Passage(f"doc{number}", start, len(text), title))
            continue
        for first, end in _spans(document.strip(), split):
            name = f"{split}{len(sources) + 1}"
            sources.append(Passage(name, start + first, start + end, title if len(documents) > 1 else ""))
    return SourcedText(f"{text}\n\n{question}", tuple(sources))


def sourced_text(
    question: str | None,
    sources: str | Sequence[str] | SourcedText,
    split: Split | None = None,
    *,
    key: str = "sources",
    is_continued: bool = True,
) -> SourcedText:
    """Return the sources in their prompt: parts of a text, documents, or a text with known sources.

    A text that a model continues (`is_continued`) may itself end in a question unless there is a question
    below it.
    """
    if isinstance(sources, SourcedText):
        return sources
    if not isinstance(sources, str):
        documents = [(str(number), text) for number, text in enumerate(sources, start=1)]
        return with_documents(documents, question or "", split)
    split = split or "sentence"
    sourced = split_text(sources, split, question=question, key=key)
    return without_asking(sourced) if is_continued and question is None and split in ASKING else sourced


MARK = re.compile(r"<source(?:\s+([^<>]{1,60}?))?\s*>|</source>")


def marked_text(text: str, *, question: str | None = None, key: str = "sentence") -> SourcedText | None:
    """Return a text with sources between `<source NAME>` and `</source>`, or None for a text without marks.

    Raises UserError, with `key` in the message, for an unpaired mark and for an empty source.
    """
    plain, sources, end = "", list[Passage](), 0
    opened: tuple[str, int] | None = None
    for mark in MARK.finditer(text):
        plain += text[end : mark.start()]
        end = mark.end()
        if (mark[0] == "</source>") == (opened is None):
            expected = "<source NAME>" if opened is None else "</source>"
            raise UserError(f"{key}: must have {expected} before its next {mark[0]}")
        if opened is None:
            opened = mark[1] or "", len(plain)
            continue
        title, start = opened
        part, opened = plain[start:], None
        if not part.strip():
            raise UserError(f"{key}: source {title or len(sources) + 1}: is empty")
        start += len(part) - len(part.lstrip())
        sources.append(Passage(f"source{len(sources) + 1}", start, start + len(part.strip()), title))
    if opened is not None:
        raise UserError(f"{key}: must have </source> after its last <source>")
    if not sources:
        return None
    plain += text[end:]
    return SourcedText(plain if question is None else f"{plain.rstrip()}\n\n{question}", tuple(sources))


def chat_text(text: str, pretrained: Pretrained, *, key: str = "file") -> SourcedText:
    """Return a chat, given as JSON, in the model's template; each message and each tool is a source.

    The JSON is a list of messages with `role` and `content`, or an object with `messages` and `tools`. Raises
    UserError, with `key` in the message, for any other text and for messages that the template omits.
    """
    messages, tools = chat_messages(text, key)
    placed = placed_chat(messages, pretrained, tools)
    titled: list[tuple[list[Span], str]] = []
    for message, (spans,) in zip(messages, placed.parts, strict=True):
        content = (message.get("content") or "").strip()
        if content:
            titled.append(
                (_in_chat(spans, pretrained, f"the message {content[:30]!r}"), str(message["role"]))
            )
    for tool, spans in zip(tools, placed.tools, strict=True):
        name = str(tool.get("function", tool).get("name", "tool"))
        whole = [_as_json(tool, span, placed.text) for span in spans]
        titled.append((_in_chat(whole, pretrained, f"the tool {name}"), f"tool {name}"))
    titled.sort()
    sources = tuple(
        Passage(f"turn{number}", *spans[0], title, tuple(spans[1:]))
        for number, (spans, title) in enumerate(titled, start=1)
    )
    if not sources:
        raise UserError(f"{key}: must contain a message with text")
    return SourcedText(placed.text, sources, is_whole=True)


def _in_chat(spans: list[Span], pretrained: Pretrained, what: str) -> list[Span]:
    if not spans:
        raise UserError(f"chat: the chat template of {pretrained.name} omits or changes {what}")
    return spans


def _as_json(tool: Mapping[str, Any], span: Span, whole: str) -> Span:
    """Return the span of the tool's JSON if the template writes JSON around a span, or else the span."""
    for written in _written(tool):
        start = whole.rfind(written, 0, span.start + len(written))
        if 0 <= start <= span.start and span.end <= start + len(written):
            return Span(start, start + len(written))
    return span


def chat_messages(text: str, key: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and the tools of a chat from its JSON.

    Raises UserError, with `key`, for any other text.
    """
    try:
        parsed = parsed_json(text)
    except ValueError:
        parsed = None
    chat = parsed if isinstance(parsed, dict) else {"messages": parsed}
    messages: Any = chat.get("messages")
    tools: Any = chat.get("tools") or []
    are_messages = isinstance(messages, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str | None)
        for message in messages
    )
    if not are_messages or not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        form = '[{"role": "user", "content": "..."}, ...], or {"messages": [...], "tools": [...]}'
        raise UserError(f"{key}: must be a chat as JSON: {form}")
    return messages, tools


def is_chat(text: str) -> bool:
    """Return True if a text looks like the JSON of a chat."""
    return text.lstrip().startswith(("[", "{"))


def _written(tool: Mapping[str, Any]) -> Iterator[str]:
    """Return a tool's JSON in every form that templates write: the whole tool or only its function."""
    for part in (tool, tool.get("function", tool)):
        for indent in (None, 2, 4):
            for is_ascii in (False, True):
                yield json.dumps(part, ensure_ascii=is_ascii, indent=indent)


@dataclass(frozen=True, kw_only=True)
class SourcedReading(Reading):
    """A reading with sources; `places` holds the positions of each source's tokens in the prompt."""

    sourced: SourcedText
    places: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def prompt(self) -> ModelText:
        """The prompt, which the encoder reads if the model has an encoder."""
        return self.context or self.text


def read_sourced(
    pretrained: Pretrained, sourced: SourcedText, *, num_new: int = 0, key: str = "file"
) -> SourcedReading:
    """Return a text as a model reads it, treating names of special tokens in its sources as ordinary text.

    Raises UserError, with `key` in the message, if the text and `num_new` new tokens are longer than the
    model can read.
    """
    if not pretrained.tokenizer.is_fast:
        message = "does not report the characters of a token, which sources require"
        raise UserError(f"model: the tokenizer of {pretrained.name} {message}")
    ids, spans = encoded_sources(pretrained, sourced)
    places = tuple(
        tuple(
            i
            for i, (start, end) in enumerate(spans)
            if any(max(start, part.start) < min(end, part.end) for part in source.spans)
        )
        for source in sourced.sources
    )
    most = pretrained.most_tokens()
    if most is not None and num_new >= most:
        raise UserError(f"max_new_tokens: must be at most {most} for {pretrained.name} (got {num_new + 1})")
    if most is not None and len(ids) + num_new > most:
        counts = [len(tokens) for tokens in places]
        longest = sourced.sources[counts.index(max(counts))].name
        beside = f" with {num_new + 1} new tokens" if num_new else ""
        must = f"must be at most {most - num_new} tokens for {pretrained.name}{beside} (got {len(ids)}"
        raise UserError(f"{key}: the prompt {must}; the longest source, {longest}, has {max(counts)})")
    unknown = pretrained.unknown_words(sourced.text, ids, spans)
    read = ModelText(pretrained.labels(ids), torch.tensor(ids), spans=spans, unknown=unknown)
    if not pretrained.has_decoder:
        return SourcedReading(read, sourced=sourced, places=places)
    nothing = replace(read, tokens=(), ids=read.ids[:0], spans=None, unknown=())
    return SourcedReading(nothing, read, sourced=sourced, places=places)


class EncodedPair(NamedTuple):
    """The tokens of two texts, the characters of the second text's tokens, and each token's text."""

    ids: list[int]
    spans: list[tuple[int, int]]
    types: list[int]


def encoded_pair(pretrained: Pretrained, sourced: SourcedText) -> EncodedPair:
    """Return the question and the text with sources as a pair. Names of special tokens are ordinary text."""
    read = pretrained.encoded(
        sourced.apart or "",
        text_pair=sourced.text,
        return_offsets_mapping=True,
        return_token_type_ids=True,
        padding=False,
        truncation=False,
        split_special_tokens=True,
    )
    in_text = [number == 1 for number in read.sequence_ids(0)]
    spans = [span if inside else (0, 0) for span, inside in zip(read["offset_mapping"], in_text, strict=True)]
    return EncodedPair(read["input_ids"], spans, read["token_type_ids"])


def encoded_sources(pretrained: Pretrained, sourced: SourcedText) -> tuple[list[int], list[tuple[int, int]]]:
    """Return a text's tokens and their characters. A special token's name in a source is ordinary text."""
    if sourced.apart is not None and pretrained.classifier is not None:
        pair = encoded_pair(pretrained, sourced)
        return pair.ids, pair.spans
    text, options = sourced.text, {"return_offsets_mapping": True, "padding": False, "truncation": False}
    special = {
        token.content: i for i, token in pretrained.tokenizer.added_tokens_decoder.items() if token.special
    }
    names = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    marks = list(re.finditer(names, text)) if names else []
    inert = [
        mark
        for mark in marks
        if any(
            mark.start() < end and start < mark.end()
            for source in sourced.sources
            for start, end in source.spans
        )
    ]
    if not inert:
        read = pretrained.encoded(text, add_special_tokens=not sourced.is_whole, **options)
        return read["input_ids"], read["offset_mapping"]
    # The pieces lie between real special tokens; inside a piece, the names of special tokens are text.
    ids, spans, start = list[int](), list[tuple[int, int]](), 0
    for mark in [*(mark for mark in marks if mark not in inert), None]:
        end = len(text) if mark is None else mark.start()
        read = pretrained.encoded(
            text[start:end], add_special_tokens=False, split_special_tokens=True, **options
        )
        ids += read["input_ids"]
        spans += [(first + start, last + start) for first, last in read["offset_mapping"]]
        if mark is not None:
            start = mark.end()
            ids.append(special[mark[0]])
            spans.append((mark.start(), mark.end()))
    if sourced.is_whole:
        return ids, spans
    plain: list[int] = pretrained.encoded("a", add_special_tokens=False)["input_ids"]
    around: list[int] = pretrained.encoded("a", add_special_tokens=True)["input_ids"]
    first = next((i for i in range(len(around)) if around[i : i + len(plain)] == plain), 0)
    last = around[first + len(plain) :]
    return [*around[:first], *ids, *last], [(0, 0)] * first + spans + [(0, 0)] * len(last)


class SourcePrompt(NamedTuple):
    """A text with sources, alone or with a question; optionally, also an answer and the right source."""

    name: str
    sentence: str
    context: str | None = None
    answer: str | None = None
    right: str | None = None

    @property
    def question(self) -> str | None:
        """The question, or None if `sentence` itself has the sources."""
        return None if self.context is None else self.sentence

    @property
    def sources(self) -> str:
        """The text with the sources."""
        return self.sentence if self.context is None else self.context


class SourcePromptFile(LineFile):
    """JSON Lines or CSV with sentence and, optionally, context, answer, id and right (a source's name)."""

    columns = ("sentence", "context", "answer", "id", "right")

    def __init__(self, name: str, key: str = "file") -> None:
        super().__init__(name, f"{key}: {name}")

    def prompts(self) -> list[SourcePrompt]:
        """Return all prompts. Raises UserError for invalid lines, and for a file without prompts."""
        prompts: list[SourcePrompt] = []

        def take(number: int, data: bytes) -> None:
            fields = self.fields(number, data, ("sentence", "context", "answer"), ("id", "right"))
            sentence = fields["sentence"]
            assert sentence is not None
            name = fields.get("id") or str(number)
            options = {key: fields.get(key) for key in ("context", "answer", "right")}
            prompts.append(SourcePrompt(name, sentence, **options))

        self.check_lines(take)
        if not prompts:
            raise UserError(f"{self.label}: contains no prompts")
        return prompts
