"""The one sanitiser: text from outside is shown as plain text that neither hides nor moves anything."""

import re

# Control, format and bidirectional characters, line separators, variation selectors, blanks other than the
# space, and lone surrogates: all that a terminal would obey, hide, or count with another width.
UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\xa0\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u1680\u180b-\u180f"
    "\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff]"
)


def plain_text(text: str) -> str:
    r"""The text with every character made visible that would not be: an escape becomes `\x1b`."""
    return UNSEEN.sub(lambda match: ascii(match[0])[1:-1], text)
