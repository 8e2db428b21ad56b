"""The only sanitizer: turns text from outside into plain text in which nothing is hidden or moved."""

import codecs
import json
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any
from unicodedata import category

# Control, format and bidirectional characters, line separators, variation selectors, whitespace other than
# the space, and lone surrogates: all that a terminal would obey, hide, or display with another width.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u180b-\u180f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)


ZWNJ, ZWJ, PICTURE = "\u200c", "\u200d", "\ufe0f"
# Scripts whose letters join or form conjuncts unless a joiner prevents it: Arabic to Sinhala, Tibetan,
# Myanmar, Khmer, Mongolian, and the forms of Arabic letters.
JOINED = re.compile("[\u0600-\u0dff\u0f00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
EMOJI = re.compile("[\u2194-\u2199\u21a9\u21aa\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
MOST_DEPTH, TOO_DEEP = 100, "it is nested too deeply"
"""The largest number of nesting levels in JSON, because code that visits values recurses at each level."""
MAX_DIGITS = 9
"""The largest number of digits in a typed number; Python refuses to parse thousands of digits."""
VISIBLE = str.maketrans({" ": "·", "\n": "↵"})
"""The marks for spaces and line breaks in a model's tokens, which show where a word begins."""


@cache
def _character_bytes() -> dict[str, int]:
    """GPT-2's alphabet, a printable character for each byte: bytes without their own use U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(unprintable)
    }


def readable_token(token: str, spelling: str | None) -> str:
    """Return a token of a model's vocabulary in readable form: `Ġcapital` as `·capital`, `Ċ` as `↵`.

    The spelling is `byte-level` (a character for each byte) or `metaspace` (`▁` for a space); None leaves the
    token unchanged. A byte that is not a whole character becomes `<0xC2>`, as vocabularies with `▁` spell it.
    """
    if spelling == "metaspace":
        return token.replace("▁", "·").replace("<0x0A>", "↵")
    if spelling != "byte-level":
        return token
    characters = _character_bytes()
    if not all(character in characters for character in token):
        return token.replace("Ġ", "·").replace("Ċ", "↵")
    return _decoded(bytes(characters[character] for character in token)).translate(VISIBLE)


BYTE = re.compile("<0x([0-9A-F]{2})>")


def readable_tokens(tokens: Sequence[str], spelling: str | None) -> list[str]:
    """Return a text's tokens, each as in `readable_token`, but parts of a character as `🦙(1/3)`, `🦙(2/3)`.

    The names of one character's tokens thus show the character and the part.
    """
    labels = [readable_token(token, spelling) for token in tokens]
    pieces = [(place, match) for place, label in enumerate(labels) for match in BYTE.finditer(label)]
    start = 0
    while spelling is not None and start < len(pieces):
        run = _first_character(pieces[start:])
        places = list(dict.fromkeys(place for place, _ in pieces[start : start + len(run)]))
        if len(places) > 1:
            character = bytes(run).decode()
            for part, place in enumerate(places, start=1):
                written = "".join(match[0] for at, match in pieces[start : start + len(run)] if at == place)
                labels[place] = labels[place].replace(written, f"{character}({part}/{len(places)})", 1)
        start += len(run) or 1
    return labels


def _first_character(pieces: Sequence[tuple[int, re.Match[str]]]) -> list[int]:
    """Return the leading adjacent bytes that form one character, or nothing if they form none."""
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
"""The largest number of bytes in a UTF-8 character."""


def _decoded(raw: bytes) -> str:
    """Decode UTF-8, writing `<0xC2>` for each byte that is not part of a complete character."""
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
    """Return the number in a string of at most nine digits, or None for any other string."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def parsed_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises ValueError if it is not JSON or has more than 100 levels of nesting.
    """
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
    """Return `1 token`, `2 tokens` or `1,000 tokens`."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def plain_text(text: str) -> str:
    r"""Make every invisible character in a text visible: an escape becomes `\x1b`.

    A joiner inside a word or an emoji stays, and so does the selector of an emoji's picture.
    """
    return UNSEEN.sub(lambda match: match[0] if _is_part(match) else ascii(match[0])[1:-1], text)


def _is_part(match: re.Match[str]) -> bool:
    """Return True if Unicode defines a use for the character between its two visible neighbours."""
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
"""Replacements for attn's characters on consoles that lack them; characters in tables keep their width."""
BRAILLE = range(0x2800, 0x2900)
LEGIBLE = "attn-legible"


def _legible(error: UnicodeError) -> tuple[str, int]:
    """Replace unencodable characters with similar characters or escapes; an error handler for codecs."""
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
        "is a database: if it is a store, use attn results, watch or heads --store to show it"
    ),
    b"%PDF": "is a PDF, not text: convert it with pdftotext",
    b"\x89PNG": "is a picture, not text: use attn heads --image to read it",
    b"\xff\xd8\xff": "is a picture, not text: use attn heads --image to read it",
    b"PK\x03\x04": "is a zip archive, not text",
    b"\x1f\x8b": "is compressed: gunzip it first",
    b"PAR1": "is a Parquet table, not text",
    b"GGUF": "is a model, not text: use --model to read it",
    b"\xff\xfe": "is UTF-16, not UTF-8: convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16, not UTF-8: convert it with iconv -f UTF-16 -t UTF-8",
}
"""The messages for files that begin with these bytes, each with a way to read the file."""


def binary_kind(content: bytes) -> str | None:
    """Describe content that is not text, by its first bytes: `is a database: ...`; None if unknown."""
    return next((kind for start, kind in BINARY.items() if content.startswith(start)), None)


_noted: set[str] = set()


def note(line: str) -> None:
    """Print a line on standard error, once per command, about a name that has changed."""
    if line not in _noted:
        _noted.add(line)
        print(plain_text(line), file=sys.stderr)


def forget_notes() -> None:
    """Allow a new command to print the notes that the previous command printed."""
    _noted.clear()
