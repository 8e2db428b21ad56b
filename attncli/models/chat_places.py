"""Positions of the parts of a chat in the prompt that a model's template renders.

A template is a program: it may strip, escape, repeat or reorder its inputs. A search for the
text of each part could therefore fail. Instead, the chat is rendered again with marks around each part, and
the marks are then removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

from attncli.models.pretrained import Pretrained
from attncli.models.writing import in_chat_template

Chat = Sequence[Mapping[str, Any]]
"""Messages, each with its role and content."""
Tools = Sequence[Mapping[str, Any]]
FIRST_MARK = 0xF0000
"""The first character of a private-use plane, which has no meaning in texts."""
LEAVES = ("name", "description")
"""The keys of a tool's strings that templates insert without inspecting them."""


class Span(NamedTuple):
    """A range of characters."""

    start: int
    end: int


class PlacedChat(NamedTuple):
    """The prompt, with the spans of each message's marked parts and of each tool.

    Each part has a list of spans: none if the template omits the part, and several if it repeats the part.
    """

    text: str
    parts: list[list[list[Span]]]
    tools: list[list[Span]]


def placed_chat(
    messages: Chat, pretrained: Pretrained, tools: Tools = (), parts: Sequence[Sequence[Span]] | None = None
) -> PlacedChat:
    """Render a chat in its template.

    `parts` holds the spans of each message's content; by default, its only part is the stripped content.
    Raises UserError if the template fails.
    """
    whole = in_chat_template(messages, pretrained, tools)
    parts = [[core(_content(message))] for message in messages] if parts is None else parts
    marks = _Marks(whole, messages, tools)
    marked = [_with_marks(message, spans, marks) for message, spans in zip(messages, parts, strict=True)]
    pairs = [numbers for _, numbers in marked]
    plain, spans = marks.taken_out(in_chat_template([message for message, _ in marked], pretrained, tools))
    placed = [[spans.get(pair, []) for pair in numbers] for numbers in pairs]
    for number, message_spans in enumerate(parts):
        # A template may inspect the content, marks included.
        if plain != whole or not _are_placed(message_spans, placed[number]):
            placed[number] = _alone(number, message_spans, messages, pretrained, tools, whole)
    return PlacedChat(whole, placed, [*_tool_spans(messages, pretrained, tools, whole)])


def _are_placed(parts: Sequence[Span], placed: Sequence[Sequence[Span]]) -> bool:
    """Return True if each part that is not empty has been placed."""
    return all(spans or part.start == part.end for part, spans in zip(parts, placed, strict=True))


def core(content: str) -> Span:
    """Return the span of a text without the whitespace around it."""
    start = len(content) - len(content.lstrip())
    return Span(start, max(start, len(content.rstrip())))


def _content(message: Mapping[str, Any]) -> str:
    return message.get("content") or ""


class _Marks:
    """Characters that do not occur anywhere in a chat, two for each part."""

    def __init__(self, *used: Any) -> None:
        text = "".join(map(str, used))
        self._characters = (chr(code) for code in count(FIRST_MARK) if chr(code) not in text)
        self.pair_of: dict[str, int] = {}

    def new(self) -> tuple[int, str, str]:
        """Return a number for a part, and the marks before and after the part."""
        number = len(self.pair_of) // 2
        before, after = next(self._characters), next(self._characters)
        self.pair_of |= {before: number, after: number}
        return number, before, after

    def taken_out(self, text: str) -> tuple[str, dict[int, list[Span]]]:
        """Return a text without its marks, and the span between each pair of marks."""
        pieces: list[str] = []
        opened: dict[int, int] = {}
        spans: dict[int, list[Span]] = {}
        length = begin = 0
        for place, character in enumerate(text):
            number = self.pair_of.get(character)
            if number is None:
                continue
            pieces.append(text[begin:place])
            length += place - begin
            begin = place + 1
            if number in opened:
                spans.setdefault(number, []).append(Span(opened.pop(number), length))
            else:
                opened[number] = length
        return "".join([*pieces, text[begin:]]), spans


def _with_marks(
    message: Mapping[str, Any], parts: Sequence[Span], marks: _Marks
) -> tuple[dict[str, Any], list[int]]:
    """Return a message with marks around its parts, and their numbers; empty parts get no marks."""
    content, numbers, pieces, end = _content(message), list[int](), list[str](), 0
    for part in parts:
        number, before, after = marks.new()
        numbers.append(number)
        if part.start < part.end:
            pieces += content[end : part.start], before, content[part.start : part.end], after
            end = part.end
    return {**message, "content": "".join([*pieces, content[end:]])} if pieces else {**message}, numbers


def _alone(
    number: int, parts: Sequence[Span], messages: Chat, pretrained: Pretrained, tools: Tools, whole: str
) -> list[list[Span]]:
    """Return the spans of one message's parts, found by leaving all other messages unmarked."""
    marks = _Marks(whole, messages, tools)
    marked, pairs = _with_marks(messages[number], parts, marks)
    changed = [marked if place == number else message for place, message in enumerate(messages)]
    plain, spans = marks.taken_out(in_chat_template(changed, pretrained, tools))
    placed = [spans.get(pair, []) for pair in pairs]
    if plain == whole and _are_placed(parts, placed):
        return placed
    return [_by_a_letter(number, part, messages, pretrained, tools, whole) for part in parts]


def _by_a_letter(
    number: int, part: Span, messages: Chat, pretrained: Pretrained, tools: Tools, whole: str
) -> list[Span]:
    """Return the spans of a part, found by changing one of its letters.

    This serves templates that cut the content, or that inspect its beginning or its end.
    """
    content = _content(messages[number])
    _, mark, _ = _Marks(whole, messages, tools).new()
    for place in dict.fromkeys((part.end - 1, (part.start + part.end) // 2, part.start)):
        changed = [*messages]
        changed[number] = {**messages[number], "content": content[:place] + mark + content[place + 1 :]}
        changed_prompt = in_chat_template(changed, pretrained, tools)
        spans = [
            _around(where, whole, place, part, content)
            for where in _mark_places(mark, changed_prompt, whole)
            if whole[where] == content[place]
        ]
        if spans:
            return spans
    return []


def _mark_places(mark: str, other: str, whole: str) -> list[int]:
    """Return the places in the prompt of the letter that a mark replaces in another prompt.

    The other prompt's length may differ only before the mark or only after it.
    """
    places = []
    longer = len(whole) - len(other)
    for place in (i for i, character in enumerate(other) if character == mark):
        if not longer or other[:place] == whole[:place]:
            places.append(place)
        if longer and other[place + 1 :] == whole[place + longer + 1 :]:
            places.append(place + longer)
    return places


def _around(where: int, whole: str, place: int, part: Span, content: str) -> Span:
    """Return the stripped span around `where` in a prompt that equals the text around a part's place."""
    start, end = where, where
    before = after = place
    while start and before > part.start and whole[start - 1] == content[before - 1]:
        start, before = start - 1, before - 1
    while end < len(whole) and after < part.end and whole[end] == content[after]:
        end, after = end + 1, after + 1
    inner = core(whole[start:end])
    return Span(start + inner.start, start + inner.end)


def _tool_spans(messages: Chat, pretrained: Pretrained, tools: Tools, whole: str) -> Iterator[list[Span]]:
    """Return, for each tool, the span from its first name or description to its last."""
    marks = _Marks(whole, messages, tools)
    numbers: list[list[int]] = []
    marked = []
    for tool in tools:
        numbers.append([])
        marked.append(_marked_tool(tool, marks, numbers[-1]))
    spans: dict[int, list[Span]] = {}
    if tools:
        plain, spans = marks.taken_out(in_chat_template(messages, pretrained, marked))
        spans = spans if plain == whole else {}
    for tool_numbers in numbers:
        tool_spans = [spans[number][0] for number in tool_numbers if number in spans]
        ends = [span.start for span in tool_spans], [span.end for span in tool_spans]
        yield [Span(min(ends[0]), max(ends[1]))] if tool_spans else []


def _marked_tool(part: Any, marks: _Marks, numbers: list[int], key: str = "") -> Any:
    if isinstance(part, Mapping):
        return {name: _marked_tool(inner, marks, numbers, name) for name, inner in part.items()}
    if isinstance(part, list):
        return [_marked_tool(inner, marks, numbers) for inner in part]
    if key in LEAVES and isinstance(part, str) and part:
        number, before, after = marks.new()
        numbers.append(number)
        return f"{before}{part}{after}"
    return part
