"""Sentences from a text file, JSON Lines or standard input: each line checked once, then read as needed."""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from attncli.errors import UserError, nearest

KEYS = ("sentence", "context", "id")
MAX_ERRORS = 20


class Prompt(NamedTuple):
    """One line of the file; `id` is the writer's own name for it, where it has one."""

    line: int
    sentence: str
    context: str | None = None
    id: str | None = None


class CheckedPrompts(NamedTuple):
    """How many prompts a file has, whether some have a context, and the mean length of a sentence."""

    num_prompts: int
    has_context: bool
    mean_characters: float


class PromptFile:
    """The sentences of a file, in bounded memory however long it is.

    Standard input (`-`) and pipes are copied to a temporary file first, since they are read more than once.
    A name that ends in .jsonl or .ndjson holds JSON Lines, and so does a pipe whose first line begins with {.
    """

    def __init__(self, name: str) -> None:
        self.label = "<stdin>" if name == "-" else name
        self._path = Path(name)
        self._spool: IO[bytes] | None = None
        try:
            if name != "-" and self._path.is_file():
                self._path.open("rb").close()
                self.is_json = self._path.suffix.lower() in (".jsonl", ".ndjson")
            else:
                self._spool = self._spooled(self._path, is_stdin=name == "-")
                self.is_json = self._spool.read(64).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        except OSError as error:
            raise UserError(f"--file {name}: cannot be read: {error.strerror}") from None

    def __enter__(self) -> "PromptFile":
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool is not None:
            self._spool.close()

    @staticmethod
    def _spooled(path: Path, *, is_stdin: bool) -> IO[bytes]:
        if is_stdin and sys.stdin is None:
            raise UserError("--file -: standard input is closed")
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as this object
        if is_stdin:
            shutil.copyfileobj(sys.stdin.buffer, spool)
        else:
            with path.open("rb") as pipe:
                shutil.copyfileobj(pipe, spool)
        spool.seek(0)
        return spool

    def __iter__(self) -> Iterator[Prompt]:
        """Every prompt, from the start; UserError at the first line that is none."""
        for number, data in self._lines():
            yield self._prompt(number, data)

    def check(self, check: Callable[[Prompt], None]) -> CheckedPrompts:
        """What the plan needs to know of the prompts; UserError with the bad lines.

        `check` raises a UserError for a prompt that the experiments cannot take.
        """
        count, characters, has_context, errors, num_errors = 0, 0, False, list[str](), 0
        numbers_as_ids: set[str] = set()
        for number, data in self._lines():
            try:
                prompt = self._prompt(number, data)
                try:
                    check(prompt)
                except UserError as error:
                    raise UserError(*(f"{self.label}:{number}: {line}" for line in error.lines)) from None
            except UserError as error:
                num_errors += len(error.lines)
                errors += error.lines[: MAX_ERRORS - len(errors)]
                continue
            count += 1
            characters += len(prompt.sentence)
            has_context = has_context or prompt.context is not None
            if prompt.id is not None and prompt.id.isdecimal():
                numbers_as_ids.add(prompt.id)
        if num_errors > len(errors):
            errors.append(f"{self.label}: and {num_errors - len(errors):,} errors more")
        if errors:
            raise UserError(*errors)
        if not count:
            raise UserError(f"--file {self.label}: holds no sentence")
        self._refuse_lines_called_like_others(numbers_as_ids)
        return CheckedPrompts(count, has_context, characters / count)

    def _refuse_lines_called_like_others(self, ids: set[str]) -> None:
        """UserError for a line without an id whose number is the id of another."""
        for number, data in self._lines() if ids else ():
            if str(number) in ids and self._prompt(number, data).id is None:
                message = f"must be given: {number}, the number of this line, is the id of another"
                raise UserError(f"{self.label}:{number}: id: {message}")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
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

    def _prompt(self, number: int, data: bytes) -> Prompt:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.label}:{number}: is not UTF-8 text (byte {error.start})") from None
        if not self.is_json:
            return Prompt(number, text)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep or too long"
            raise UserError(f"{self.label}:{number}: is not valid JSON: {message}") from None
        errors = list(_errors(found))
        if errors:
            raise UserError(*(f"{self.label}:{number}: {error}" for error in errors))
        name = found.get("id")
        return Prompt(
            number, found["sentence"], found.get("context"), str(name) if name is not None else None
        )


def _errors(found: Any) -> Iterator[str]:
    if not isinstance(found, dict):
        yield 'must be an object like {"sentence": "..."}'
        return
    for key in (key for key in found if key not in KEYS):
        yield f"{key}: unknown key{nearest(key, KEYS)}"
    if "sentence" not in found:
        yield "sentence: must be given"
    for key in ("sentence", "context"):
        value = found.get(key)
        if key not in found or (value is None and key == "context"):
            continue
        if not isinstance(value, str):
            yield f"{key}: must be text (got {value!r:.60})"
        elif not value.strip():
            yield f"{key}: must hold at least one token (got an empty text)"
        elif _has_surrogate(value):
            yield f"{key}: must be valid UTF-8 text"
    name = found.get("id")
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        yield f"id: must be text or a whole number (got {name!r:.60})"
    elif isinstance(name, str) and _has_surrogate(name):
        yield "id: must be valid UTF-8 text"


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
