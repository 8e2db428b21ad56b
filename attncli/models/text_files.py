"""Files with a text in each line: each line checked once, then read as needed."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from attncli.errors import UserError, nearest

MAX_ERRORS = 20
MAX_GROUPS_NAMED = 10

Lines = TypeVar("Lines", bound="LineFile")


class LineFile:
    """The lines of a file, in bounded memory however long it is; errors about the file begin with `place`.

    Standard input (`-`) and pipes are copied to a temporary file first, since they are read more than once.
    A file named .jsonl or .ndjson holds JSON Lines, and so does a pipe whose first line begins with {.
    """

    def __init__(self, name: str, place: str) -> None:
        self.label = "<stdin>" if name == "-" else name
        self._path = Path(name)
        self._spool: IO[bytes] | None = None
        try:
            if name != "-" and self._path.is_file():
                self._path.open("rb").close()
                self.is_json = self._path.suffix.lower() in (".jsonl", ".ndjson")
            else:
                self._spool = _spooled(self._path, place, is_stdin=name == "-")
                self.is_json = self._spool.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        except OSError as error:
            raise UserError(f"{place}: cannot be read: {error.strerror}") from None

    def __enter__(self: Lines) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool is not None:
            self._spool.close()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank, with their numbers."""
        with self._opened() as file:
            for number, data in enumerate(file, start=1):
                stripped = data.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else data.strip()
                if stripped:
                    yield number, stripped

    @contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        if self._spool is None:
            with self._path.open("rb") as file:
                yield file
        else:
            self._spool.seek(0)
            yield self._spool

    def fields(
        self, number: int, data: bytes, texts: Sequence[str], names: Sequence[str]
    ) -> dict[str, str | None]:
        """A line by its fields: the first of `texts` is the line itself where the file is not JSON Lines.

        Names may be whole numbers, which become text. UserError with the line number for anything else.
        """
        where = f"{self.label}:{number}"
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: is not UTF-8 text (byte {error.start})") from None
        if not self.is_json:
            return {texts[0]: text}
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep or too long"
            raise UserError(f"{where}: is not valid JSON: {message}") from None
        if errors := list(_field_errors(found, texts, names)):
            raise UserError(*(f"{where}: {error}" for error in errors))
        return {key: None if value is None else str(value) for key, value in found.items()}

    def check_lines(self, check: Callable[[int, bytes], None]) -> None:
        """Pass every line to `check`; UserError with the errors of the first lines that it refuses."""
        errors, num_errors = list[str](), 0
        for number, data in self.lines():
            try:
                check(number, data)
            except UserError as error:
                num_errors += len(error.lines)
                errors += error.lines[: MAX_ERRORS - len(errors)]
        if num_errors > len(errors):
            errors.append(f"{self.label}: and {num_errors - len(errors):,} errors more")
        if errors:
            raise UserError(*errors)


def _spooled(path: Path, place: str, *, is_stdin: bool) -> IO[bytes]:
    if is_stdin and sys.stdin is None:
        raise UserError(f"{place}: standard input is closed")
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the file of lines
    with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as pipe:
        shutil.copyfileobj(pipe, spool)
    spool.seek(0)
    return spool


def _field_errors(found: Any, texts: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    required, keys = texts[0], (*texts, *names)
    if not isinstance(found, dict):
        yield f'must be an object like {{"{required}": "..."}}'
        return
    for key in (key for key in found if key not in keys):
        yield f"{key}: unknown key{nearest(key, keys)}"
    if required not in found:
        yield f"{required}: must be given"
    for key in texts:
        value = found.get(key)
        if key not in found or (value is None and key != required):
            continue
        if not isinstance(value, str):
            yield f"{key}: must be text (got {value!r:.60})"
        elif not value.strip():
            yield f"{key}: must hold at least one token (got an empty text)"
        elif _has_surrogate(value):
            yield f"{key}: must be valid UTF-8 text"
    for key in names:
        name = found.get(key)
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            yield f"{key}: must be text or a whole number (got {name!r:.60})"
        elif isinstance(name, str) and _has_surrogate(name):
            yield f"{key}: must be valid UTF-8 text"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


class TextLine(NamedTuple):
    """One of many texts; `id`, `group` and `context` are the writer's own, where it has them."""

    line: int
    text: str
    id: str | None = None
    group: str | None = None
    context: str | None = None

    @property
    def label(self) -> str:
        """The id, or the line where there is none."""
        return self.id or str(self.line)


class TextFile(LineFile):
    """What the setting `texts` names: a text in each line, or JSON Lines with text, id and group.

    With `group` only the texts of that group.
    """

    def __init__(self, name: str, group: str | None = None) -> None:
        super().__init__(name, f"texts: {name}")
        self.group = group

    def __iter__(self) -> Iterator[TextLine]:
        """Every text, from the start; UserError at the first invalid line."""
        for number, data in self.lines():
            line = self._text(number, data)
            if self.group in (None, line.group):
                yield line

    def numbered(self) -> Iterator[tuple[int, TextLine]]:
        """Every text with the number of its line."""
        return ((line.line, line) for line in self)

    def count(self) -> int:
        """How many texts there are; UserError with the invalid lines, and where there is no text."""
        count, groups = 0, dict[str, None]()

        def check(number: int, data: bytes) -> None:
            nonlocal count
            line = self._text(number, data)
            count += self.group in (None, line.group)
            if line.group is not None and len(groups) <= MAX_GROUPS_NAMED:
                groups[line.group] = None

        self.check_lines(check)
        if not count and self.group is not None:
            known = ", ".join(groups) or "no groups"
            raise UserError(
                f"text_group: must be a group of {self.label}, which has {known} (got {self.group})"
            )
        if not count:
            raise UserError(f"texts: {self.label}: holds no text")
        return count

    def _text(self, number: int, data: bytes) -> TextLine:
        fields = self.fields(number, data, ("text",), ("id", "group"))
        text = fields["text"]
        assert text is not None
        return TextLine(number, text, fields.get("id"), fields.get("group"))
