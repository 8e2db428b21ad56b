"""The lessons that come with the package: Markdown pages, read as prose and commands."""

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from attncli.errors import UserError, WriteError

LESSONS = files("attncli") / "data" / "lessons"
NAME = re.compile(r"(?P<number>[0-9]+)-(?P<name>.+)\.md")
LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")
PROMPT = "$ attn "
INDENT = " " * 4


class Prose(NamedTuple):
    """A paragraph as one line; where it is `literal`, its lines are kept."""

    text: str
    literal: bool = False


class Command(NamedTuple):
    """A command line, without its leading `attn `."""

    line: str


class Lesson(NamedTuple):
    """A page: the number and the name of its file, its title, and what follows."""

    number: int
    name: str
    title: str
    parts: tuple[Prose | Command, ...]


def lessons() -> list[Lesson]:
    """All lessons, each building on those before it."""
    pages = ((NAME.fullmatch(page.name), page) for page in LESSONS.iterdir())
    found = [_read(int(match["number"]), match["name"], page) for match, page in pages if match]
    return sorted(found)


def lesson(which: str) -> Lesson:
    """The lesson of that number or name; UserError where there is none."""
    every = lessons()
    for each in every:
        if which in (str(each.number), each.name):
            return each
    raise UserError(
        f"there is no lesson {which:.60}: they go from 1 to {len(every)} (attn lesson lists them)"
    )


def copy_files(folder: Path) -> list[str]:
    """Copy what the lessons read (settings, vectors, saved reports) into a folder; the names of the files.

    UserError where one exists already: it may have been changed.
    """
    given = sorted((LESSONS / "files").iterdir(), key=lambda file: file.name)
    for file in given:
        if (folder / file.name).exists():
            raise UserError(f"{folder}: has {file.name} already: name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in given:
            (folder / file.name).write_bytes(file.read_bytes())
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror}") from None
    return [file.name for file in given]


def _read(number: int, name: str, page: Traversable) -> Lesson:
    first, _, rest = page.read_text(encoding="utf-8").partition("\n")
    return Lesson(number, name, first.removeprefix("# "), tuple(_parts(rest)))


def _parts(text: str) -> Iterator[Prose | Command]:
    """Paragraphs and fenced blocks; of a `console` block only the commands, which are run again."""
    for i, block in enumerate(re.split(r"^```", text, flags=re.MULTILINE)):
        if i % 2 == 0:  # between fences
            yield from map(_paragraph, filter(str.strip, block.split("\n\n")))
            continue
        kind, _, code = block.partition("\n")
        if kind == "console":
            lines = code.splitlines()
            yield from (Command(line.removeprefix(PROMPT)) for line in lines if line.startswith(PROMPT))
        else:
            yield Prose(code.rstrip(), literal=True)


def _paragraph(text: str) -> Prose:
    """A paragraph on one line unless it is indented; a link as its text and the lesson it leads to."""
    if all(line.startswith(INDENT) for line in text.strip("\n").splitlines()):
        return Prose(text.strip("\n"), literal=True)
    return Prose(LINK.sub(_link, " ".join(text.split())))


def _link(match: re.Match[str]) -> str:
    page = NAME.fullmatch(match[2])
    return f"{match[1]} (attn lesson {int(page['number'])})" if page else match[1]
