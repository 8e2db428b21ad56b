"""Files with one text per line, checked once and then read as needed, and texts that run together."""

import csv
import errno
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from io import StringIO, TextIOWrapper
from itertools import count, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from attncli.errors import MOST_LINES, NO_TEXT, UserError, hints_for_first_lines, nearest
from attncli.index import readings
from attncli.models.words import UnknownWords
from attncli.records.arguments import is_unicode
from attncli.records.token_ids import IDS, LABELS, TokenIds
from attncli.system.files import (
    JSON_SUFFIXES,
    MEBIBYTE,
    PIPE_BYTES,
    next_line,
    open_file,
    stdin_bytes,
    too_large,
)
from attncli.system.plain_text import binary_kind, counted, parsed_json

if TYPE_CHECKING:  # texts of a plan are counted without loading torch
    from attncli.models.pretrained import Reading

MAX_LISTED_GROUPS = 10
DELIMITERS = {".csv": ",", ".tsv": "\t"}
MAX_CELL = 2**26
"""The most characters in a cell. Without a limit, an unclosed quote would swallow the rest of the file."""

AnyLineFile = TypeVar("AnyLineFile", bound="LineFile")
TextRead = TypeVar("TextRead", covariant=True)


class LineFile:
    """The lines of a file, in bounded memory; errors about the file begin with `place`.

    Standard input (`-`) and pipes are first copied to a temporary file, since the lines are read more than
    once. Files named .jsonl, .ndjson or .json, and pipes whose first line begins with {, contain JSON Lines.
    Each record of a .csv or .tsv file becomes a JSON line, without the cells of other columns.
    """

    columns: Sequence[str] = ()
    """The columns that are read from a CSV file, text first; empty if CSV files are not supported."""
    needed: Sequence[str] = ()
    """The columns that a CSV file must have; by default, the text."""

    def __init__(self, name: str, place: str) -> None:
        self.label = "<stdin>" if name == "-" else name
        self._path = Path(name)
        self._spool: IO[bytes] | None = None
        self.is_csv = False
        try:
            if name != "-" and self._path.is_file():
                open_file(self._path).close()
                suffix = self._path.suffix.lower()
                self.is_csv = bool(self.columns) and suffix in DELIMITERS
                self.is_json = self.is_csv or suffix in JSON_SUFFIXES
            else:
                self._spool = _spooled(self._path, place, is_stdin=name == "-")
                self.is_json = self._spool.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        except OSError as error:
            raise UserError(f"{place}: cannot be read: {error.strerror}") from None

    def __enter__(self: AnyLineFile) -> AnyLineFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool is not None:
            self._spool.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the nonblank lines with their numbers."""
        with self._opened() as file:
            if self.is_csv:
                yield from self._records(file)
                return
            for number, data in self._numbered_lines(file):
                if stripped := data.strip():
                    yield number, stripped

    def _numbered_lines(self, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield every line with its number.

        Raises UserError for overlong lines, as in a file without newlines.
        """
        for number in count(1):
            try:
                line = next_line(file)
            except OSError as error:
                raise UserError(f"{self.label}:{number}: cannot be read: {error.strerror}") from None
            if not line:
                return
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line

    def _records(self, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield each record of a CSV file as JSON, with its last line number.

        Raises UserError for invalid records.
        """
        with closing(self._csv_rows(file)) as rows:
            columns = _with_usual_name(next(rows, (1, []))[1], self.columns)
            for name in self.columns:
                if columns.count(name) > 1:
                    raise UserError(f"{self.label}:1: has two columns named {name}: remove one")
            for name in (name for name in self.needed or self.columns[:1] if name not in columns):
                has = f"it has {', '.join(columns)[:60]}" if columns else "it is empty"
                alternative = "; alternatively, use JSON Lines, or a .txt file with one text per line"
                alternative = "" if self.needed else alternative
                raise UserError(f"{self.label}:1: must have a column {name} ({has}){alternative}")
            for number, row in rows:
                if not row:
                    continue
                if len(row) != len(columns):
                    where, count = f"{self.label}:{number}", len(columns)
                    raise UserError(
                        f"{where}: must have {count} cells, like the header: "
                        "put cells that contain commas in quotes"
                    )
                cells = dict(zip(columns, row, strict=True))
                row_cells = {name: cells[name] for name in self.columns if cells.get(name)}
                yield number, json.dumps({self.columns[0]: "", **row_cells}).encode()

    def _csv_rows(self, file: IO[bytes]) -> Generator[tuple[int, list[str]], None, None]:
        """Yield the cells of each record of a CSV file, and its last line number. Headers are stripped.

        Raises UserError, at the line of the quote, for quotes that RFC 4180 does not allow.
        """
        first_line = 1
        with _decoded(file) as text:
            csv.field_size_limit(MAX_CELL)  # the limit applies to the whole process; the default is 128 KiB
            reader = csv.reader(self._csv_lines(text), delimiter=self._delimiter, strict=True)
            try:
                for cells in reader:
                    header = first_line == 1
                    yield reader.line_num, [cell.strip() for cell in cells] if header else cells
                    first_line = reader.line_num + 1
                return
            except UnicodeDecodeError as error:
                raise UserError(f"{self.label}: is not UTF-8 text ({error.reason})") from None
            except csv.Error as error:
                number, reason = reader.line_num, str(error)
        if reason == "unexpected end of data":
            number = self._unclosed_line(first_line)
            reason = (
                'the quote that opens a cell is never closed: close it, or write "" for a quote in a cell'
            )
        elif " expected after " in reason:
            reason = 'text after a closing quote: write "" for a quote in a quoted cell'
            reason += f" (the record begins on line {first_line})" if number > first_line else ""
        elif "field larger than" in reason:
            number, reason = first_line, f"{reason}: is a quote left open?"
        raise UserError(f"{self.label}:{number}: is not valid CSV: {reason}")

    def _unclosed_line(self, first_line: int) -> int:
        """Return the line of the unclosed quote in the record that begins on `first_line`."""
        with self._opened() as file, _decoded(file) as text:
            lines = islice(self._csv_lines(text), first_line - 1, None)
            reader = csv.reader(lines, delimiter=self._delimiter)
            *_, cells = reader
            num_lines = sum(1 for _ in StringIO(cells[-1], newline=""))
            return first_line + reader.line_num - max(1, num_lines)

    @property
    def _delimiter(self) -> str:
        return DELIMITERS.get(self._path.suffix.lower(), ",")

    def header(self) -> list[str]:
        """The column names of a CSV file."""
        with self._opened() as file, closing(self._csv_rows(file)) as rows:
            return next(rows, (1, []))[1]

    def _csv_lines(self, text: TextIOWrapper) -> Iterator[str]:
        """Yield every line, unmodified. Raises UserError for a line that is longer than a cell may be."""
        for number in count(1):
            line = text.readline(MAX_CELL + 1)
            if len(line) > MAX_CELL:
                longest = f"the line has more than {MAX_CELL:,} characters"
                raise UserError(f"{self.label}:{number}: cannot be read: {longest}")
            if not line:
                return
            yield line

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if self._spool is None:
            with open_file(self._path) as file:
                yield file
        else:
            self._spool.seek(0)
            yield self._spool

    def fields(
        self, number: int, data: bytes, texts: Sequence[str], names: Sequence[str]
    ) -> dict[str, str | None]:
        """Return the fields of a line; unless the file is JSON Lines, the line is the first of `texts`.

        Each of `texts` may be an object with token ids, which becomes TokenIds; for the first text, the line
        itself may contain the ids. Names may be whole numbers, which become strings. Raises UserError, with
        the line number, for other values.
        """
        where = f"{self.label}:{number}"
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            wrong = binary_kind(data) or f"is not UTF-8 text (byte {error.start})"
            raise UserError(f"{where}: {wrong}") from None
        if not self.is_json:
            return {texts[0]: text}
        try:
            record = parsed_json(text)
        except ValueError as error:
            message = (
                error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply or too long"
            )
            raise UserError(f"{where}: is not valid JSON: {message}") from None
        if isinstance(record, dict):
            record = dict(zip(_with_usual_name(record, texts), record.values(), strict=True))
        if errors := list(_with_token_ids(record, texts)) or list(_field_errors(record, texts, names)):
            raise UserError(*(f"{where}: {error}" for error in errors))
        return {
            key: None if value in (None, "") else value if isinstance(value, str) else str(value)
            for key, value in record.items()
        }

    @hints_for_first_lines()
    def check_lines(self, check: Callable[[int, bytes], None]) -> None:
        """Pass every line to `check`.

        Raises UserError with each distinct error and the number of lines that have it.
        """
        first, counts = dict[str, str](), Counter[str]()
        for number, data in self.lines():
            if number == 1 and (kind := binary_kind(data)) is not None:
                raise UserError(f"{self.label}: {kind}")
            try:
                check(number, data)
            except UserError as error:
                for line in error.lines:
                    kind = line.removeprefix(f"{self.label}:{number}: ")
                    kind = kind if kind in first or len(first) < MOST_LINES else ""
                    first.setdefault(kind, line)
                    counts[kind] += 1
        more = {kind: f" (and on {counted(num - 1, 'more line')})" for kind, num in counts.items() if num > 1}
        if counts[""]:
            first[""], more[""] = f"{self.label}: and {counts['']:,} more errors", ""
        if first:
            raise UserError(*(f"{line}{more.get(kind, '')}" for kind, line in first.items()))


@contextmanager
def _decoded(file: IO[bytes]) -> Iterator[TextIOWrapper]:
    """Open a file as text and keep it open, since a copied file is read more than once."""
    text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach()


def _spooled(path: Path, place: str, *, is_stdin: bool) -> IO[bytes]:
    if is_stdin and sys.stdin is None:
        raise UserError(f"{place}: standard input is closed")
    with nullcontext(stdin_bytes()) if is_stdin else open_file(path, may_be_pipe=True) as pipe:
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - closed together with this file
        copied = 0
        while block := pipe.read(MEBIBYTE):
            copied += spool.write(block)
            if copied > PIPE_BYTES:
                raise OSError(errno.EFBIG, too_large(PIPE_BYTES))
    spool.seek(0)
    return spool


ALTERNATIVE_NAMES = {"text": "sentence", "sentence": "text"}  # this lets one file work for every command


def _with_usual_name(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """Return the field names, replacing an alternative name of the first expected field by its usual name."""
    names_read, first = [*names], known[0]
    alternative = (
        None if first in names_read or ALTERNATIVE_NAMES.get(first) in known else ALTERNATIVE_NAMES.get(first)
    )
    return [first if name == alternative else name for name in names_read]


def _with_token_ids(record: Any, texts: Sequence[str]) -> Iterator[str]:
    """Replace each text that is given as ids by TokenIds, and yield errors."""
    if not isinstance(record, dict):
        return
    if IDS in record and IDS not in texts:
        ids = {key: record.pop(key) for key in (IDS, LABELS) if key in record}
        if texts[0] in record:
            yield f"{IDS}: cannot be combined with {texts[0]}"
            return
        try:
            record[texts[0]] = TokenIds.of(ids)
        except ValueError as error:
            yield str(error)
    for key in texts:
        if isinstance(value := record.get(key), dict):
            try:
                record[key] = TokenIds.of(value)
            except ValueError as error:
                yield f"{key}: {error}"


def _field_errors(record: Any, texts: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    required, keys = texts[0], (*texts, *names)
    if not isinstance(record, dict):
        yield f'must be an object like {{"{required}": "..."}}'
        return
    hints = {key: nearest(key, keys) for key in record if key not in keys}
    if required in record or any(f"'{required}'" in hint for hint in hints.values()):
        yield from (f"{key}: unknown key{hint}" for key, hint in hints.items())
    else:
        labels = f": {LABELS} needs {IDS}" if LABELS in record else ""
        unknown = f" (unknown: {', '.join(hints)[:60]})" if hints and not labels else ""
        yield f"{required}: is required{labels}{unknown}"
    for key in texts:
        value = record.get(key)
        if key not in record or (value is None and key != required):
            continue
        if not isinstance(value, str):
            yield f"{key}: must be text (got {value!r:.60})"
        elif not value.strip():
            yield f"{key}: {NO_TEXT}"
        elif not is_unicode(value):
            yield f"{key}: must be valid UTF-8 text"
    for key in names:
        name = record.get(key)
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            yield f"{key}: must be text or a whole number (got {name!r:.60})"
        elif isinstance(name, str) and not is_unicode(name):
            yield f"{key}: must be valid UTF-8 text"


class TextLine(NamedTuple):
    """One of many texts; `id`, `group`, `context` and `answer` come from the file if it has them.

    `other`, `answer`, `against` and `token` belong to a pair of prompts. `file` is the file that the line
    names, if any.
    """

    line: int
    text: str
    id: str | None = None
    group: str | None = None
    context: str | None = None
    other: str | None = None
    answer: str | None = None
    against: str | None = None
    token: str | None = None
    file: str | None = None

    @property
    def label(self) -> str:
        """The id, or else the line number."""
        return self.id or str(self.line)


class KindOfFile(NamedTuple):
    """The name of a kind of file that is read as a whole, and its suffixes."""

    name: str
    suffixes: tuple[str, ...]

    def is_one(self, file: Path) -> bool:
        """Return True if the file exists and has one of the suffixes."""
        return file.suffix.lower() in self.suffixes and file.is_file()


FILE_KINDS = {kind.setting: KindOfFile(what, kind.suffixes) for what, kind in readings().items()}
"""Kinds of files, by the setting for each."""


class FileList(LineFile):
    """A file with the names of other files, one per line, relative to its folder.

    The text of each listed file is its name. `key` is the setting for this kind of file.
    """

    def __init__(self, name: str, place: str, key: str) -> None:
        super().__init__(name, place)
        self.key = key
        self.folder = Path() if name == "-" else self._path.parent

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Yield every file with its line number. Raises UserError for a line that does not name a file."""
        return ((number, self.named(number, data)) for number, data in self.lines())

    def count(self) -> int:
        """Return the number of files.

        Raises UserError for lines that do not name a file, and for an empty list.
        """
        names: list[TextLine] = []
        self.check_lines(lambda number, data: names.append(self.named(number, data)))
        if not names:
            raise UserError(f"{self.label}: lists no {FILE_KINDS[self.key].name} files")
        return len(names)

    def named(self, number: int, data: bytes) -> TextLine:
        """Return the file that a line names. Raises UserError if that file does not exist."""
        name, kind = data.decode("utf-8", "replace"), FILE_KINDS[self.key]
        if kind.is_one(file := self.folder / name):
            return TextLine(number, name, name, file=str(file))
        expected = f"{kind.name} file ({', '.join(kind.suffixes[:4])}, ...)"
        raise UserError(f"{self.label}:{number}: must name an existing {expected} (got {name:.200})")


@dataclass(frozen=True)
class FileFolder:
    """The files of one kind in a folder, as texts, in order of their names.

    The text of each file is its name. `key` is the setting for the folder.
    """

    folder: str
    key: str

    @property
    def label(self) -> str:
        """The folder's name in messages."""
        return self.folder

    def _files(self) -> list[Path]:
        return sorted(filter(FILE_KINDS[self.key].is_one, Path(self.folder).iterdir()))

    def count(self) -> int:
        """Return the number of files. Raises UserError for a folder without such files."""
        count = len(self._files())
        if not count:
            name, suffixes = FILE_KINDS[self.key]
            raise UserError(f"{self.key}: {self.folder}: contains no {name} files ({', '.join(suffixes)})")
        return count

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Yield every file with its number."""
        for number, file in enumerate(self._files(), start=1):
            yield number, TextLine(number, file.name, file.name, file=str(file))


def file_texts(name: str, key: str) -> AbstractContextManager[FileFolder | FileList]:
    """Return the files of one kind in a folder, or the files listed in a file."""
    return nullcontext(FileFolder(name, key)) if Path(name).is_dir() else FileList(name, key, key)


class TextFile(LineFile):
    """The file of the setting `texts`: one text per line, or JSON Lines or CSV with text, id and group.

    JSON Lines may contain token ids instead of a text, with optional labels: see TokenIds. With `group`, only
    the texts of that group are included.
    """

    columns: Sequence[str] = ("text", "id", "group")

    def __init__(self, name: str, group: str | None = None) -> None:
        super().__init__(name, f"texts: {name}")
        self.group = group

    def __iter__(self) -> Iterator[TextLine]:
        """Yield every text, from the start. Raises UserError at the first invalid line."""
        for number, data in self.lines():
            line = self._text(number, data)
            if self.group in (None, line.group):
                yield line

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Yield every text with its line number."""
        return ((line.line, line) for line in self)

    def count(self) -> int:
        """Return the number of texts. Raises UserError for invalid lines, and for a file without texts."""
        count, groups = 0, dict[str, None]()

        def check(number: int, data: bytes) -> None:
            nonlocal count
            line = self._text(number, data)
            count += self.group in (None, line.group)
            if line.group is not None and len(groups) <= MAX_LISTED_GROUPS:
                groups[line.group] = None

        self.check_lines(check)
        if not count and self.group is not None:
            names = ", ".join(groups) or "no groups"
            raise UserError(
                f"text_group: must be a group of {self.label}, which has {names} (got {self.group})"
            )
        if not count:
            raise UserError(f"texts: {self.label}: contains no texts")
        return count

    def _text(self, number: int, data: bytes) -> TextLine:
        fields = self.fields(number, data, ("text",), ("id", "group"))
        text = fields["text"]
        assert text is not None
        return TextLine(number, text, fields.get("id"), fields.get("group"))


class CountedFile(Protocol):
    """A file of texts whose `count` reads all lines and raises UserError for invalid ones."""

    def __enter__(self) -> "CountedFile": ...

    def __exit__(self, *_: object) -> None: ...

    def count(self) -> int:
        """Return the number of texts."""


def check_lines(name: str, opened: Callable[[], CountedFile]) -> None:
    """Read a whole file of texts before a model is loaded.

    Raises UserError for invalid lines. A pipe is skipped, since it can be read only once.
    """
    if Path(name).is_file():
        with opened() as file:
            file.count()


class PromptsFile(TextFile):
    """Texts, optionally with continuations; JSON Lines or CSV may also have answer, against and other."""

    columns: tuple[str, ...] = ("text", "other", "answer", "against", "id", "group")

    def _text(self, number: int, data: bytes) -> TextLine:
        texts, names = self.columns[:2], self.columns[2:]
        fields = self.fields(number, data, texts, names)
        text = fields.pop("text")
        assert text is not None
        optional_fields = {name: fields.get(name) for name in self.columns[1:]}
        return TextLine(number, text, **optional_fields)


class PairFile(PromptsFile):
    """Pairs of prompts: JSON Lines or CSV with text, other and, optionally, answer, against and token."""

    columns = (*PromptsFile.columns, "token")

    def _text(self, number: int, data: bytes) -> TextLine:
        if not self.is_json:
            raise UserError(
                f"texts: {self.label}: must be JSON Lines or CSV (.jsonl, .csv) with text and other"
            )
        line = super()._text(number, data)
        if line.other is None:
            prompt = "it is the prompt whose head outputs are swapped in"
            raise UserError(f"{self.label}:{number}: other: is required: {prompt}")
        return line


MAX_TEXTS = 32
MAX_WEIGHTS = 2**17
"""The most weights of a head in texts that run together: 8 texts of 128 tokens.

Whole matrices may be needed, and matrix products with a thousand rows gain nothing from more rows.
"""
TEXTS_PER_WINDOW = 2048
"""The number of texts whose tokens are in memory. Of a thousand sentences, a few dozen are equally long."""
FILES_PER_WINDOW = 32
"""The number of files in memory at a time. Each takes about a megabyte, and most have the same size."""


@runtime_checkable
class NumberedTexts(Protocol[TextRead]):
    """A file of texts, where each text has the number of its first line."""

    @property
    def label(self) -> str:
        """The name of the file in messages."""
        ...

    def count(self) -> int:
        """Return the number of texts. Raises UserError if a text cannot be read, or if there are no texts."""
        ...

    def numbered(self) -> Iterator[tuple[int, TextRead]]:
        """Yield every text, from the start."""
        ...


@dataclass(frozen=True)
class ListedTexts:
    """Texts in memory, numbered from 1."""

    texts: Sequence[str]
    label: str = "texts"

    def count(self) -> int:
        """Return the number of texts. Raises UserError for an empty list."""
        if not self.texts:
            raise UserError(f"{self.label}: must contain at least one text")
        return len(self.texts)

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Yield every text, from the start."""
        return ((number, TextLine(number, text)) for number, text in enumerate(self.texts, start=1))


def in_batches(
    texts: Iterable[TextRead],
    read: Callable[[TextRead], "Reading"],
    refuse: Callable[[TextRead, UserError], object],
    *,
    window: int = TEXTS_PER_WINDOW,
) -> "Iterator[list[tuple[TextRead, Reading]]]":
    """Yield every text with its reading, in batches that run together; `refuse` receives unreadable texts.

    The tokens of `window` texts are in memory at a time. The texts of a batch have equally many tokens and
    words, so that no text is padded: padding would affect other tokens in models that mix tokens outside of
    attention.
    """
    texts = iter(texts)
    while some := list(islice(texts, window)):
        by_counts: dict[tuple[Any, ...], list[tuple[TextRead, Reading]]] = {}
        for text in some:
            try:
                reading = read(text)
            except UserError as error:
                refuse(text, error)
            else:
                alike_in = (reading.counts, reading.in_words().counts, reading.shapes)
                by_counts.setdefault(alike_in, []).append((text, reading))
        for (counts, *_), alike in by_counts.items():
            most = 1 if alike[0][1].is_alone else MAX_TEXTS
            step = max(1, min(most, MAX_WEIGHTS // max(counts) ** 2))
            for start in range(0, len(alike), step):
                yield alike[start : start + step]


@dataclass
class ManyTexts(Generic[TextRead]):
    """The texts of a file, from the setting `key`, in batches that run together.

    Texts that `read` refuses are left out. `progress` receives the completed share.
    """

    file: NumberedTexts[TextRead]
    read: "Callable[[TextRead], Reading]"
    progress: Callable[[float], None] | None = None
    key: str = "texts"
    num_read: int = 0
    num_tokens: int = 0
    num_cut: int = 0
    num_left_out: int = 0
    first_left_out: str = ""
    unknown: UnknownWords = field(default_factory=UnknownWords)

    def batches(self) -> "Iterator[list[tuple[TextRead, Reading]]]":
        """Yield every text with its reading.

        Raises UserError if a text is invalid or if no text can be read.
        """
        count, texts = self.file.count(), self.file.numbered()
        window = FILES_PER_WINDOW if self.key in FILE_KINDS else TEXTS_PER_WINDOW
        read = self.read
        for batch in in_batches(texts, lambda numbered: read(numbered[1]), self._leave_out, window=window):
            self.num_read += len(batch)
            self.num_tokens += sum(len(reading.text.ids) for _, reading in batch)
            self.num_cut += sum(reading.text.left_out > 0 for _, reading in batch)
            self.unknown.add(reading.unknown for _, reading in batch)
            yield [(text, reading) for (_, text), reading in batch]
            if self.progress is not None:
                self.progress((self.num_read + self.num_left_out) / count)
        if not self.num_read:
            raise UserError(self.first_left_out)

    def _leave_out(self, numbered: tuple[int, object], error: UserError) -> None:
        self.num_left_out += 1
        # An error about the setting becomes an error about this line of the file.
        about = f"{self.file.label}:{numbered[0]}: {error.lines[0].removeprefix(f'{self.key}: ')}"
        self.first_left_out = self.first_left_out or about

    def notes(self) -> list[str]:
        """Return notes on how many texts were cut or left out, with the reason for the first one left out."""
        notes = []
        if self.num_cut:
            notes.append(f"{self._counted(self.num_cut)} cut to the length that the model reads.")
        if self.num_left_out:
            notes.append(f"{self._counted(self.num_left_out)} left out: {self.first_left_out}.")
        return [*notes, *self.unknown.notes()]

    def _counted(self, count: int) -> str:
        kind = FILE_KINDS[self.key].name if self.key in FILE_KINDS else "text"
        return f"1 {kind} is" if count == 1 else f"{count:,} {kind}s are"
