"""Files of texts with known pairs of positions: JSON Lines, CSV, aligned lines, CoNLL-U."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeGuard, get_args

from attncli.errors import UserError
from attncli.models.text_files import LineFile, TextLine
from attncli.records.token_ids import TokenIds
from attncli.system.files import LINE_BYTES, MEBIBYTE
from attncli.system.plain_text import parsed_json

if TYPE_CHECKING:
    from conllu import Token

Unit = Literal["token", "word", "character"]
UNITS: tuple[Unit, ...] = get_args(Unit)
SEPARATOR = "|||"
ALIGNED = re.compile(r"([0-9]{1,9})-([0-9]{1,9})(?::([0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?))?")
"""A pair in Pharaoh format, with an optional weight after a colon."""
MOST_POSITION, LEAST_WEIGHT = 2**31, 1e-6
EXAMPLE = '{"text": "the cat sat", "pairs": [[1, 0]]}'
CONLLU = (".conllu", ".conll")


class KnownPair(NamedTuple):
    """Two positions, counted from 0; if the text has a context, the second position is in the context.

    `weight`, from 1e-6 to 1, is the pair's weight in the counts. `name` is the name of a relation.
    """

    first: int
    second: int
    weight: float = 1.0
    name: str = ""

    def __str__(self) -> str:
        return f"[{self.first}, {self.second}]"


@dataclass(frozen=True)
class PairedText:
    """A text with its pairs; their positions count `unit`s.

    `character_words` has the word number of each character if words are not separated by spaces, as in
    CoNLL-U. `names` are vocabulary tokens that replace the text if the file lists them.
    """

    line: TextLine
    pairs: tuple[KnownPair, ...]
    unit: Unit
    character_words: Sequence[int] | None = None
    num_words: int = 0
    names: tuple[str, ...] = ()

    def word_numbers(self, text: str) -> list[int]:
        """The word number of each character of the text, or of its context."""
        return words_between_blanks(text) if self.character_words is None else [*self.character_words]


def words_between_blanks(text: str) -> list[int]:
    """The index of each character's word, from 0; whitespace counts as part of the word that follows."""
    numbers, number, after_blank = list[int](), -1, True
    for character in text:
        is_blank = character.isspace()
        number += after_blank and not is_blank
        numbers.append(number + is_blank)
        after_blank = is_blank
    return numbers


class KnownPairsFile(LineFile):
    """A file of texts with known pairs, one text per line.

    JSON Lines or CSV with text, pairs and, optionally, context, unit, id and group; otherwise lines with a
    source, its translation and their alignment, such as "das haus ||| the house ||| 0-0 1-1". The translation
    becomes the text of the decoder, and the source becomes its context. A pair is two positions, optionally
    with a weight.
    """

    columns = ("text", "context", "pairs", "unit", "id", "group")
    needed = ("text", "pairs")

    def __init__(self, name: str) -> None:
        super().__init__(name, f"pairs: {name}")
        self.unit: Unit | None = None

    def count(self) -> int:
        """The number of texts. Raises UserError for invalid lines, and if the file has no text."""
        count = 0

        def check(number: int, data: bytes) -> None:
            nonlocal count
            self._paired(number, data)
            count += 1

        self.check_lines(check)
        if not count:
            raise UserError(f"pairs: {self.label}: contains no texts")
        return count

    def numbered(self) -> Iterator[tuple[int, PairedText]]:
        """Yield every text with its line number. Raises UserError at the first invalid line."""
        return ((number, self._paired(number, data)) for number, data in self.lines())

    def _paired(self, number: int, data: bytes) -> PairedText:
        where = f"{self.label}:{number}"
        if not self.is_json:
            return self._aligned(number, data)
        record = _record(data)
        if record is None:
            self.fields(number, data, ("text",), ())  # reports the JSON error
            raise UserError(f"{where}: must be one JSON object per line, such as {EXAMPLE}")
        missing = object()
        # An empty cell of a CSV file counts as missing.
        pairs, unit = record.pop("pairs", "" if self.is_csv else missing), record.pop("unit", None)
        names = _names(record, where)
        line = self._line(number, json.dumps(record).encode())
        if pairs is missing:
            raise UserError(f'{where}: pairs: is missing: add "pairs": [[0, 3], [1, 2]]')
        if unit not in (None, "", *UNITS):
            raise UserError(f"{where}: unit: must be {', '.join(UNITS)} (got {unit!r:.60})")
        has_tokens = bool(names) or isinstance(line.text, TokenIds)
        usual: Unit = "token" if has_tokens else "word"
        if has_tokens and unit in UNITS and unit != usual:
            raise UserError(f"{where}: unit: a text given as tokens has no {unit}s: omit the unit")
        return replace(paired(line, pairs, unit or usual, where, self), names=names)

    def _line(self, number: int, data: bytes) -> TextLine:
        # Keys taken out earlier are listed in the message about unknown keys.
        fields = self.fields(number, data, ("text", "context"), ("id", "group", "pairs", "unit"))
        text = fields["text"]
        assert text is not None
        return TextLine(number, text, fields.get("id"), fields.get("group"), fields.get("context"))

    def _aligned(self, number: int, data: bytes) -> PairedText:
        """A source, its translation and their alignment, in which the translation looks at the source."""
        where = f"{self.label}:{number}"
        text = self.fields(number, data, ("text",), ())["text"]
        parts = [part.strip() for part in str(text).split(SEPARATOR)]
        if len(parts) != 3 or not all(parts[:2]):
            raise UserError(
                f"{where}: must have the form SOURCE {SEPARATOR} TRANSLATION {SEPARATOR} 0-0 1-2; "
                "or use JSON Lines or CSV (.jsonl, .csv) with text and pairs"
            )
        pairs = [(second, first, *rest) for first, second, *rest in _written_pairs(parts[2], where)]
        return paired(TextLine(number, parts[1], context=parts[0]), pairs, "word", where, self)


class KnownPairsList(KnownPairsFile):
    """Texts with known pairs from Python: mappings with text and pairs, numbered from 1."""

    def __init__(self, texts: Sequence[Mapping[str, object]]) -> None:
        self.label, self.is_json, self.is_csv, self.unit = "texts", True, False, None
        self._spool, self._texts = None, texts

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield each mapping as a line of JSON. Raises UserError for values that JSON cannot represent."""
        for number, mapping in enumerate(self._texts, start=1):
            try:
                yield number, json.dumps(mapping, default=_plain).encode()
            except (TypeError, ValueError) as error:
                raise UserError(f"{self.label}:{number}: {error}") from None


def open_pairs(
    texts: str | PathLike[str] | Iterable[Mapping[str, object]],
) -> "KnownPairsFile | SentenceFile":
    """Open texts with pairs, given as a file (recognised by its suffix) or as mappings."""
    if not isinstance(texts, str | PathLike):
        return KnownPairsList([*texts])
    name = fspath(texts)
    return SentenceFile(name, "pairs") if name.lower().endswith(CONLLU) else KnownPairsFile(name)


def _plain(value: object) -> object:
    """Convert arrays and their numbers to lists and numbers, and mappings to dicts."""
    if isinstance(value, Mapping):
        return {**value}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"must consist of text, numbers and lists (got {type(value).__name__})")


def paired(line: TextLine, pairs: object, unit: Unit, where: str, file: KnownPairsFile) -> PairedText:
    """Combine a text with its pairs. Raises UserError for an invalid pair.

    All texts in a file share one unit.
    """
    file.unit = file.unit or unit
    if unit != file.unit:
        raise UserError(f"{where}: unit: must be {file.unit}, as in the first text (got {unit})")
    if isinstance(pairs, str) and pairs.lstrip().startswith("["):  # a CSV cell
        pairs = _parsed_pairs(pairs, where)
    listed = _written_pairs(pairs, where) if isinstance(pairs, str) else pairs
    if not isinstance(listed, Sequence):
        raise UserError(f"{where}: pairs: must be a list, such as [[0, 3], [1, 2]] (got {pairs!r:.60})")
    return PairedText(line, tuple(_pair(each, where) for each in listed), unit)


def _parsed_pairs(text: str, where: str) -> object:
    try:
        return parsed_json(text)
    except ValueError:
        raise UserError(f"{where}: pairs: is not valid JSON (got {text:.60})") from None


def _names(record: dict[str, Any], where: str) -> tuple[str, ...]:
    """The token names of a record that has neither ids nor a text; their text is added to the record."""
    if "tokens" not in record or "ids" in record or "text" in record:
        return ()
    names = record.pop("tokens")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{where}: tokens: must be a list of tokens of the vocabulary (got {names!r:.60})")
    record["text"] = " ".join(names)
    return tuple(names)


def _record(data: bytes) -> dict[str, Any] | None:
    try:
        record = parsed_json(data)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _written_pairs(text: str, where: str) -> list[tuple[int | float, ...]]:
    """The pairs of an alignment in Pharaoh format, 0-0 1-2, optionally with weights, 0-0:0.5."""
    pairs: list[tuple[int | float, ...]] = []
    for word in text.split():
        match = ALIGNED.fullmatch(word)
        if match is None:
            raise UserError(
                f"{where}: pairs: must look like 0-0 1-2, or 0-0:0.5 with a weight (got {word:.40})"
            )
        first, second, weight = match.groups()
        pairs.append((int(first), int(second), *(() if weight is None else (float(weight),))))
    return pairs


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pair(value: object, where: str) -> KnownPair:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) not in (2, 3):
        raise UserError(
            f"{where}: pairs: a pair must be [0, 3], or [0, 3, 0.5] with a weight (got {value!r:.60})"
        )
    for position in value[:2]:
        # In an array of pairs with weights, positions are floats, such as 3.0.
        if not _is_number(position) or position % 1 or not 0 <= position < MOST_POSITION:
            raise UserError(
                f"{where}: pairs: a position must be a whole number, at least 0 (got {position!r:.60})"
            )
    weight = value[2] if len(value) == 3 else 1.0
    if not _is_number(weight) or not LEAST_WEIGHT <= weight <= 1:
        raise UserError(
            f"{where}: pairs: a weight must be at least {LEAST_WEIGHT:g} and at most 1 (got {weight!r:.60})"
        )
    return KnownPair(int(value[0]), int(value[1]), float(weight))


class SentenceFile(LineFile):
    """A CoNLL-U file, read one sentence at a time. https://universaldependencies.org/format.html"""

    def __init__(self, name: str, key: str = "relations") -> None:
        if find_spec("conllu") is None:
            raise UserError(f'{key}: needs conllu: pip install "attncli[models]"')
        super().__init__(name, f"{key}: {name}")
        self._key = key

    def count(self) -> int:
        """The number of sentences. Raises UserError at the first invalid sentence, or for an empty file."""
        count = sum(1 for _ in self.numbered())
        if not count:
            raise UserError(f"{self._key}: {self.label}: contains no sentences")
        return count

    def numbered(self) -> Iterator[tuple[int, PairedText]]:
        """Yield every sentence with the number of its first line. Raises UserError for an invalid line."""
        for rows in self._blocks():
            line, _ = rows[0]
            try:
                yield line, _parsed(rows)
            except BadRow as error:
                raise UserError(f"{self._key}: {self.label}:{error.line}: {error}") from None

    def _blocks(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield the numbered lines of each sentence, without comments."""
        lines: list[tuple[int, bytes]] = []
        size = 0
        with self._opened() as file:
            for number, line in self._numbered_lines(file):
                if line.startswith(b"#"):
                    continue
                if line.strip():
                    lines.append((number, line))
                    size += len(line)
                    if size > LINE_BYTES:
                        most = f"{LINE_BYTES // MEBIBYTE} MiB"
                        raise UserError(
                            f"{self._key}: {self.label}:{lines[0][0]}: a sentence must have at most {most}"
                        )
                elif lines:
                    yield lines
                    lines, size = [], 0
        if lines:
            yield lines


class BadRow(ValueError):
    """An invalid CoNLL-U row, with its line number."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _parsed(lines: Sequence[tuple[int, bytes]]) -> PairedText:
    """Parse a sentence. Raises BadRow for an invalid line."""
    rows = [(number, _row(number, line)) for number, line in lines]
    written_numbers, written = _written_words(rows)
    text, character_words = _joined(written)
    pairs = tuple(_relations(rows, written_numbers))
    return PairedText(TextLine(lines[0][0], text), pairs, "word", character_words, len(written))


def _row(number: int, line: bytes) -> "Token":
    from conllu.exceptions import ParseException
    from conllu.parser import DEFAULT_FIELDS, parse_line

    try:
        text = line.decode().strip("\r\n ")
    except UnicodeDecodeError:
        raise BadRow(number, "is not UTF-8 text") from None
    if "\t" in text:  # conllu would also split at two spaces
        text = re.sub(" {2,}", " ", text)
    try:
        row = parse_line(text, DEFAULT_FIELDS)
    except ParseException as error:
        raise BadRow(number, f"is not CoNLL-U: {error}") from None
    if row["id"] is None:
        raise BadRow(number, "has no word number (column 1)")
    return row


def _written_words(rows: "Sequence[tuple[int, Token]]") -> "tuple[dict[int, int], list[Token]]":
    """Map the id of each syntactic word to its written word, and list the written words."""
    written_numbers: dict[int, int] = {}
    written: list[Token] = []
    last, last_line = 0, 0
    for line, row in rows:
        number = "".join(map(str, row["id"])) if isinstance(row["id"], tuple) else row["id"]
        if not row.get("form", "").strip():
            raise BadRow(line, f"word {number} has no form (column 2)")
        match row["id"]:
            case int(word):
                if word != len(written_numbers) + 1:
                    raise BadRow(line, f"word {len(written_numbers) + 1} is missing (found {word})")
                if word > last:
                    written.append(row)
                written_numbers[word] = len(written) - 1
            case (first, "-", int(end)):
                if first != len(written_numbers) + 1 or first <= last:
                    raise BadRow(
                        line, f"word {number} must come before word {first} and must not overlap other words"
                    )
                written.append(row)
                last, last_line = end, line
    if last > len(written_numbers):
        raise BadRow(
            last_line, f"word {len(written_numbers) + 1} is missing: a written word extends to word {last}"
        )
    return written_numbers, written


def _joined(written: "list[Token]") -> tuple[str, list[int]]:
    """Join words to a text, and return each character's word number; a space counts with the next word."""
    text, character_words = "", list[int]()
    blank = ""
    for number, row in enumerate(written):
        text += blank + row["form"]
        character_words += [number] * len(blank + row["form"])
        blank = "" if (row.get("misc") or {}).get("SpaceAfter") == "No" else " "
    return text, character_words


def _relations(rows: "Sequence[tuple[int, Token]]", written_numbers: dict[int, int]) -> Iterator[KnownPair]:
    """Yield the relations between written words, except the root; a written word may be related to itself."""
    for line, row in rows:
        word, head, name = row["id"], row.get("head"), row.get("deprel")
        if not isinstance(word, int):
            continue
        if not isinstance(head, int) or not name or name == "_":
            raise BadRow(line, f"word {word} lacks its syntactic head or relation (columns 7 and 8)")
        if not name.isprintable() or any(map(str.isspace, name)):
            raise BadRow(line, f"word {word}: a relation must not contain whitespace (got {name!r})")
        if head and head not in written_numbers:
            raise BadRow(line, f"word {word}: the head must be at most {len(written_numbers)} (got {head})")
        if head:
            yield KnownPair(written_numbers[word], written_numbers[head], name=name)
