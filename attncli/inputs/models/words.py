"""The words of a text, and which of them each token of a model stands in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from unicodedata import category

JOINING = frozenset("'\N{RIGHT SINGLE QUOTATION MARK}-_")
"""Marks that stand inside of words, between two letters: don't, well-known."""
JOINING_DIGITS = frozenset(".,")


@dataclass(frozen=True)
class Words:
    """The number of the word of each token, from 0 without gaps, and each word as the text has it.

    The tokenizer's own special tokens are words by themselves, as the vocabulary writes them.
    """

    of_token: tuple[int, ...]
    texts: tuple[str, ...]

    def shifted_right(self, start: str) -> "Words":
        """The words with a start token before them and the last token left out."""
        of_token = (0, *(number + 1 for number in self.of_token[:-1]))
        return Words(of_token, (start, *self.texts)[: of_token[-1] + 1])


def _is_letter(text: str, place: int) -> bool:
    """Whether a character is no blank and stands inside of words: neither punctuation nor an operator."""
    char = text[place]
    if char.isspace():
        return False
    around = text[place - 1 : place] + text[place + 1 : place + 2]
    if char in JOINING:
        return len(around) == 2 and around.isalnum()
    if char in JOINING_DIGITS:
        return len(around) == 2 and around.isdecimal()
    of = category(char)
    return not (of[0] == "P" or of in ("Sm", "Sc") or char in "^`")


def words_of_characters(text: str) -> list[int]:
    """The number of the word of each character; a blank counts to the word after it.

    A word is a run of letters, or one punctuation mark, operator or line break.
    """
    numbers: list[int] = []
    number, after_letter = -1, False
    for place, char in enumerate(text):
        is_letter = _is_letter(text, place)
        is_blank = char.isspace() and char not in "\r\n"
        if not is_blank and not (is_letter and after_letter):
            number += 1
        numbers.append(number + is_blank)
        after_letter = is_letter
    return numbers


def words_of(
    text: str,
    tokens: Sequence[str],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    special: Collection[int],
) -> Words:
    """The words that the tokens make of a text: those of one word are merged, and those that share a token.

    `offsets` are the characters of each token: a token is of the word of its first one.
    """
    of_character = [*words_of_characters(text), len(text)]
    of_token: list[int] = []
    spans: list[tuple[int, int, str]] = []
    last = -1
    for token, token_id, (start, end) in zip(tokens, ids, offsets, strict=True):
        own = len(text[start:end].rstrip())
        if token_id in special:
            spans.append((0, 0, token))
            last = -1
        elif last >= of_character[start]:
            spans[-1] = (spans[-1][0], end, token)
        else:
            spans.append((start, end, token))
        if token_id not in special:
            last = of_character[start + max(0, own - 1)]
        of_token.append(len(spans) - 1)
    return Words(tuple(of_token), tuple(_written(text[start:end], token) for start, end, token in spans))


def _written(text: str, token: str) -> str:
    """The text of a word without blanks around it; a line break as it is, a special token by its name."""
    return text.strip() or text or token
