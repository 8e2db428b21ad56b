"""The one sanitiser: text from outside is shown as plain text that neither hides nor moves anything."""

import re
from functools import cache

# Control, format and bidirectional characters, line separators, variation selectors, blanks other than the
# space, and lone surrogates: all that a terminal would obey, hide, or count with another width.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u180b-\u180f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)


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
    token as it is. Bytes that are no whole character stay as the vocabulary has them.
    """
    if spelling == "metaspace":
        return token.replace("▁", "·").replace("<0x0A>", "↵")
    if spelling != "byte-level":
        return token
    try:
        return bytes(map(_bytes_of_characters().__getitem__, token)).decode().translate(VISIBLE)
    except (KeyError, UnicodeDecodeError):
        return token.replace("Ġ", "·").replace("Ċ", "↵")


def plain_text(text: str) -> str:
    r"""The text with every character made visible that would not be: an escape becomes `\x1b`."""
    return UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)
