"""Sentences of a CoNLL-U file: their text, and which word each word depends on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UserError
from attncli.experiments.reading.text_file import LineFile

if TYPE_CHECKING:
    from conllu import Token


class Relation(NamedTuple):
    """The number of a word and of the word it depends on, from 0, and what the file calls the relation."""

    dependent: int
    head: int
    name: str


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence as it is written, with the number of the word of each character, and its relations.

    Words are those of the written text: "al" (a + el) is one.
    """

    text: str
    of_character: list[int]
    num_words: int
    relations: tuple[Relation, ...]


class SentenceFile(LineFile):
    """A CoNLL-U file, a sentence at a time. https://universaldependencies.org/format.html"""

    def __init__(self, name: str) -> None:
        if find_spec("conllu") is None:
            raise UserError('relations: needs: pip install "attncli[models]"')
        super().__init__(name, f"relations: {name}")

    def count(self) -> int:
        """How many sentences there are; UserError at the first invalid one, and where there is none."""
        count = sum(1 for _ in self.numbered())
        if not count:
            raise UserError(f"relations: {self.label}: holds no sentence")
        return count

    def numbered(self) -> Iterator[tuple[int, ParsedSentence]]:
        """Every sentence with the number of its first line; UserError there for an invalid one."""
        for line, block in self._blocks():
            where = f"relations: {self.label}:{line}"
            try:
                yield line, _parsed(block.decode())
            except UnicodeDecodeError:
                raise UserError(f"{where}: is not UTF-8 text") from None
            except ValueError as error:
                raise UserError(f"{where}: {error}") from None

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """The lines of each sentence, without comments, and the number of the first one."""
        lines: list[bytes] = []
        start = 0
        with self._opened() as file:
            for number, data in enumerate(file, start=1):
                line = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
                if b"\t" in line:  # conllu would split at two blanks, too
                    line = re.sub(rb" {2,}", b" ", line)
                if line.startswith(b"#"):
                    continue
                if line.strip():
                    start = number if not lines else start
                    lines.append(line)
                elif lines:
                    yield start, b"".join(lines)
                    lines = []
        if lines:
            yield start, b"".join(lines)


def _parsed(block: str) -> ParsedSentence:
    """ValueError for a block that is not a sentence in CoNLL-U."""
    from conllu import parse
    from conllu.exceptions import ParseException

    try:
        (rows,) = parse(block)
    except ParseException as error:
        raise ValueError(f"is not CoNLL-U: {error}") from None
    number_of, written = _written_words(list(rows))
    text, of_character = _joined(written)
    return ParsedSentence(text, of_character, len(written), tuple(_relations(list(rows), number_of)))


def _written_words(rows: "list[Token]") -> "tuple[dict[int, int], list[Token]]":
    """The number of the written word of each syntactic word, by its id, and the written words."""
    number_of: dict[int, int] = {}
    written: list[Token] = []
    last = 0
    for row in rows:
        if not row["form"].strip():
            raise ValueError(f"word {row['id']} has no form (column 2)")
        match row["id"]:
            case int(word):
                if word != len(number_of) + 1:
                    raise ValueError(f"word {len(number_of) + 1} is missing (found {word})")
                if word > last:
                    written.append(row)
                number_of[word] = len(written) - 1
            case (_, "-", int(end)):
                written.append(row)
                last = end
    return number_of, written


def _joined(written: "list[Token]") -> tuple[str, list[int]]:
    """The text of words, and the number of the word of each character; a blank belongs to the next word."""
    text, of_character = "", list[int]()
    blank = ""
    for number, row in enumerate(written):
        text += blank + row["form"]
        of_character += [number] * len(blank + row["form"])
        blank = "" if (row.get("misc") or {}).get("SpaceAfter") == "No" else " "
    return text, of_character


def _relations(rows: "list[Token]", number_of: dict[int, int]) -> Iterator[Relation]:
    """Those between written words: neither of the root nor inside one word."""
    for row in rows:
        word, head, name = row["id"], row.get("head"), row.get("deprel")
        if not isinstance(word, int):
            continue
        if not isinstance(head, int) or not name or name == "_":
            raise ValueError(f"word {word} has no syntactic head, or no relation to it (columns 7 and 8)")
        if not name.isprintable() or any(map(str.isspace, name)):
            raise ValueError(f"word {word}: a relation is a word without blanks (got {name!r})")
        if head and head not in number_of:
            raise ValueError(f"word {word}: the head must be at most {len(number_of)} (got {head})")
        if head and number_of[word] != number_of[head]:
            yield Relation(number_of[word], number_of[head], name)
