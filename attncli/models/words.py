"""The words of a text, and the tokens that form each of them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from unicodedata import category

from attncli.records.arguments import checked

JOINING = frozenset("'\N{RIGHT SINGLE QUOTATION MARK}-_")
"""Marks that may stand between two letters of a word: don't, well-known."""
JOINING_DIGITS = frozenset(".,")
MOST_UNKNOWN, MOST_CHARACTERS = 5, 24
"""The most unknown words in a note, and the most characters shown of each."""

Spans = Sequence[tuple[int, int]]
"""The first character of each token, and the character after its last."""
UnknownWord = tuple[str, str]
"""A word that a vocabulary lacks, and the token that replaces it."""


@dataclass(frozen=True)
class Words:
    """The word number of each token, from 0 without gaps, and the text of each word.

    Each special token of the tokenizer is a word, spelled as in the vocabulary. Each entry of `of_text` holds
    words of the text: one word, several that share a token, or none for a special token.
    """

    of_token: tuple[int, ...]
    texts: tuple[str, ...]
    of_text: tuple[range, ...]

    def shifted_right(self, start: str) -> "Words":
        """Return the words with a start token in front and without the last token."""
        token_words = (0, *(number + 1 for number in self.of_token[:-1]))
        count = token_words[-1] + 1
        return Words(token_words, (start, *self.texts)[:count], (range(0), *self.of_text)[:count])


WordsOfCharacters = Callable[[str], list[int]]
"""A function that returns the word number of each character, from 0; whitespace belongs to the next word."""


def _is_letter(text: str, place: int) -> bool:
    """Return True if a character belongs inside a word: no whitespace, punctuation mark or operator."""
    char = text[place]
    if char.isspace():
        return False
    around = text[place - 1 : place] + text[place + 1 : place + 2]
    if char in JOINING:
        return len(around) == 2 and around.isalnum()
    if char in JOINING_DIGITS:
        return len(around) == 2 and around.isdecimal()
    kind = category(char)
    return not (kind[0] == "P" or kind in ("Sm", "Sc") or char in "^`")


@checked
def words_of_characters(text: str) -> list[int]:
    """Return the word number of each character; whitespace counts as part of the word that follows.

    A word is a run of letters, or a single punctuation mark, operator or line break.
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
    of_characters: Sequence[int],
    tokens: Sequence[str],
    ids: Sequence[int],
    offsets: Sequence[tuple[int, int]],
    special: Collection[int],
) -> Words:
    """Return the words that a text's tokens form.

    Tokens of one word are merged, and so are words that share a token. `offsets` holds the characters of each
    token, which belongs to the word of its first character. A special token that is only part of a word (such
    as a byte) is treated like any other token.
    """
    character_words = [*of_characters, len(text)]
    token_words: list[int] = []
    spans: list[tuple[int, int, str]] = []
    text_words: list[range] = []
    last = -1
    for token, token_id, (start, end) in zip(tokens, ids, offsets, strict=True):
        length = len(text[start:end].rstrip())
        is_part = length and _has_more(character_words, start, start + length)
        if token_id in special and not is_part:
            spans.append((0, 0, token))
            text_words.append(range(0))
            last = -1
        else:
            first, is_new = character_words[start], last < character_words[start]
            last = character_words[start + max(0, length - 1)]
            if is_new:
                spans.append((start, end, token))
                text_words.append(range(first, last + 1))
            else:
                spans[-1] = (spans[-1][0], end, token)
                text_words[-1] = range(text_words[-1].start, last + 1)
        token_words.append(len(spans) - 1)
    # Surrounding spaces are removed, line breaks are kept, and special tokens have their names.
    texts = tuple(text[start:end].strip() or text[start:end] or token for start, end, token in spans)
    return Words(tuple(token_words), texts, tuple(text_words))


def _has_more(of_character: Sequence[int], start: int, stop: int) -> bool:
    """Return True if the first or the last word of these characters continues outside them."""
    first, last = of_character[start], of_character[stop - 1]
    return (start > 0 and of_character[start - 1] == first) or of_character[stop] == last


def unknown_notes(words: Iterable[UnknownWord], subject: str = "The text has") -> list[str]:
    """Return a sentence that lists words read as an unknown token, or nothing if there are no such words."""
    tokens_by_word = dict(words)
    if not tokens_by_word:
        return []
    listed_words = [
        word if len(word) <= MOST_CHARACTERS else f"{word[:MOST_CHARACTERS]}…" for word in tokens_by_word
    ]
    more = f" and {len(listed_words) - MOST_UNKNOWN:,} more" if len(listed_words) > MOST_UNKNOWN else ""
    listed, tokens = (
        ", ".join(map(repr, listed_words[:MOST_UNKNOWN])),
        " or ".join(dict.fromkeys(tokens_by_word.values())),
    )
    what, are = ("a word that is", "is") if len(tokens_by_word) == 1 else ("words that are", "are")
    return [f"{subject} {what} not in the model's vocabulary and {are} read as {tokens}: {listed}{more}."]


@dataclass
class UnknownWords:
    """The words of many texts that a vocabulary lacks, and the number of texts that contain any."""

    num_texts: int = 0
    words: dict[str, str] = field(default_factory=dict)

    def add(self, texts: Iterable[Collection[UnknownWord]]) -> None:
        """Count the unknown words of these texts."""
        for words in filter(None, texts):
            self.num_texts += 1
            self.words |= words

    def notes(self) -> list[str]:
        """Return a note with the number of texts that have such words, and the first of the words."""
        have = "1 text has" if self.num_texts == 1 else f"{self.num_texts:,} texts have"
        return unknown_notes(self.words.items(), have)
