"""The one sanitiser: text from outside is shown as plain text that neither hides nor moves anything."""

import codecs
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any
from unicodedata import category

# Control, format and bidirectional characters, line separators, variation selectors, blanks other than the
# space, and lone surrogates: all that a terminal would obey, hide, or count with another width.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u180b-\u180f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)


ZWNJ, ZWJ, PICTURE = "\u200c", "\u200d", "\ufe0f"
# Scripts whose letters join, or make conjuncts, unless a joiner says otherwise: Arabic to Sinhala, Tibetan,
# Myanmar, Khmer, Mongolian, and the forms of Arabic letters.
JOINED = re.compile("[\u0600-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
EMOJI = re.compile("[\u2194-\u2199\u21a9\u21aa\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
MOST_DEPTH, TOO_DEEP = 100, "it is nested too deeply"
"""Of JSON: what walks through its values calls itself at each level."""
MAX_DIGITS = 9
"""Of a number that somebody types; Python refuses to read one of thousands."""
VISIBLE = str.maketrans({" ": "·", "\n": "↵"})
"""How the blanks and line ends of a model's tokens are shown: where a word begins."""


@cache
def _bytes_of_characters() -> dict[str, int]:
    """GPT-2's alphabet: a printable character for each byte; those that are none follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def readable_token(token: str, spelling: str | None) -> str:
    """A token of a model's vocabulary as the text that it stands for: `Ġcapital` is `·capital`, `Ċ` is `↵`.

    The spelling is `byte-level` (a character for each byte) or `metaspace` (`▁` for a blank); None leaves the
    token as it is. A byte that is no whole character is `<0xC2>`, as vocabularies with `▁` spell it.
    """
    if spelling == "metaspace":
        return token.replace("▁", "·").replace("<0x0A>", "↵")
    if spelling != "byte-level":
        return token
    characters = _bytes_of_characters()
    if not all(character in characters for character in token):
        return token.replace("Ġ", "·").replace("Ċ", "↵")
    return _decoded(bytes(characters[character] for character in token)).translate(VISIBLE)


BYTE = re.compile("<0x([0-9A-F]{2})>")


def readable_tokens(tokens: Sequence[str], spelling: str | None) -> list[str]:
    """The tokens of a text as `readable_token` has each, but of a character of several `🦙(1/3)`, `🦙(2/3)`.

    So the tokens of one character have names that say which one it is, and which part of it each has.
    """
    labels = [readable_token(token, spelling) for token in tokens]
    pieces = [(place, match) for place, label in enumerate(labels) for match in BYTE.finditer(label)]
    start = 0
    while spelling is not None and start < len(pieces):
        run = _character_of(pieces[start:])
        places = list(dict.fromkeys(place for place, _ in pieces[start : start + len(run)]))
        if len(places) > 1:
            character = bytes(run).decode()
            for part, place in enumerate(places, start=1):
                own = "".join(match[0] for at, match in pieces[start : start + len(run)] if at == place)
                labels[place] = labels[place].replace(own, f"{character}({part}/{len(places)})", 1)
        start += len(run) or 1
    return labels


def _character_of(pieces: Sequence[tuple[int, re.Match[str]]]) -> list[int]:
    """The bytes at the start of these that are one character, next to each other; none without one."""
    raw: list[int] = []
    for (place, piece), (before, last) in zip(pieces[:MOST_BYTES], (pieces[0], *pieces), strict=False):
        is_next = piece.start() == last.end() if place == before else place == before + 1
        if raw and not is_next:
            break
        if raw and place != before and (piece.start() > 0 or last.end() < len(last.string)):
            break
        raw.append(int(piece[1], 16))
        try:
            bytes(raw).decode()
        except UnicodeDecodeError:
            continue
        return raw
    return []


MOST_BYTES = 4
"""Of a character in UTF-8."""


def _decoded(raw: bytes) -> str:
    """The text of UTF-8, with `<0xC2>` for each byte that is no part of a whole character."""
    text = ""
    while raw:
        try:
            return text + raw.decode()
        except UnicodeDecodeError as error:
            text += raw[: error.start].decode()
            text += "".join(f"<0x{byte:02X}>" for byte in raw[error.start : error.end])
            raw = raw[error.end :]
    return text


def whole_number(text: str) -> int | None:
    """The number that a text of at most nine digits writes; None for any other text."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def parsed_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for any other text, and one nested more than 100 deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    marks = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    if marks > MOST_DEPTH:
        level = [value]
        for _ in range(MOST_DEPTH):
            inner = (item.values() if isinstance(item, dict) else item for item in level)
            level = [item for items in inner for item in items if isinstance(item, list | dict)]
        if level:
            raise ValueError(TOO_DEEP)
    return value


def counted(count: int, name: str) -> str:
    """`1 token`, `2 tokens`, `1,000 tokens`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def plain_text(text: str) -> str:
    r"""The text with every character made visible that would not be: an escape becomes `\x1b`.

    A joiner, or what asks for an emoji's picture, stays where a word or an emoji is written with it.
    """
    return UNSEEN.sub(lambda match: match[0] if _is_part(match) else ascii(match[0])[1:-1], text)


def _is_part(match: re.Match[str]) -> bool:
    """Whether a character stands where Unicode has a use for it, between two that are seen."""
    text, place, char = match.string, match.start(), match[0]
    before, after = text[max(0, place - 2) : place], text[place + 1 : place + 2]
    if char == PICTURE:
        return EMOJI.match(before[-1:]) is not None
    if char not in (ZWNJ, ZWJ) or not before:
        return False
    if char == ZWJ and EMOJI.match(after):
        return EMOJI.match(before.rstrip(PICTURE)[-1:]) is not None
    return all(JOINED.match(side) and category(side)[0] in "LM" for side in (before[-1], after))


LIKE = {
    **dict.fromkeys("─", "-"),
    **dict.fromkeys("═━", "="),
    **dict.fromkeys("│┤", "|"),
    **{"└": "+", "×": "x", "·": ".", "⋮": ":", "↑": "^", "↓": "v", "▾": "v", "▸": ">"},
    **dict.fromkeys("«»“”„", '"'),
    **{"…": "...", "→": "->", "←": "<-", "±": "+-", "↵": "\\n", "¼": "1/4"},
    **{"√": "sqrt ", "Σ": "sum", "∞": "inf", "²": "^2", "ᵀ": "^T", "∈": "in", "λ": "lambda"},
    **dict(zip("▁▂▃▄▅▆▇█▀", "_.:-=+*##", strict=True)),
    **dict(zip("░▒▓", ".:#", strict=True)),
    **dict(zip("▏▎▍▌▋▊▉", "..:-=+#", strict=True)),
}
"""What stands for characters of ours that a console lacks; those of tables and curves keep their width."""
BRAILLE = range(0x2800, 0x2900)
LEGIBLE = "attn-legible"


def _legible(error: UnicodeError) -> tuple[str, int]:
    """As a handler of errors of codecs: like characters for those that cannot be written, else escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_like, error.object[error.start : error.end])), error.end


def _like(character: str) -> str:
    if ord(character) in BRAILLE:
        return " ..::####"[(ord(character) & 0xFF).bit_count()]
    return LIKE.get(character) or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(LEGIBLE, _legible)

BINARY = {
    b"SQLite format 3\0": (
        "is a database: attn results, watch and heads --store show a store, results --tidy all of it"
    ),
    b"%PDF": "is a PDF, not text: pdftotext makes text of one",
    b"\x89PNG": "is a picture, not text: attn heads --image reads it",
    b"\xff\xd8\xff": "is a picture, not text: attn heads --image reads it",
    b"PK\x03\x04": "is a zip archive, not text",
    b"\x1f\x8b": "is compressed: gunzip it first",
    b"PAR1": "is a Parquet table, not text",
    b"GGUF": "is a model, not text: --model reads it",
    b"\xff\xfe": "is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
    b"\xfe\xff": "is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it",
}
"""What a file is that begins with these bytes, and what reads it."""


def binary_kind(content: bytes) -> str | None:
    """What content that is no text is, by its first bytes: `is a database: ...`; None where nothing tells."""
    return next((kind for start, kind in BINARY.items() if content.startswith(start)), None)


_noted: set[str] = set()


def note(line: str) -> None:
    """Print a line on standard error, once a command: what was read has another name now."""
    if line not in _noted:
        _noted.add(line)
        print(plain_text(line), file=sys.stderr)


def forget_notes() -> None:
    """A command begins: its notes are printed, even those of the command before it."""
    _noted.clear()
