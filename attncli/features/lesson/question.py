"""The lessons of the package: Markdown pages, read as prose and commands."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill, indent
from typing import TYPE_CHECKING, NamedTuple

from attncli.commands.command import (
    DEBUG,
    LESSON_FILES,
    Command,
    argument,
    can_walk,
    color_depth,
    option,
    width,
)
from attncli.commands.pager import walk
from attncli.errors import DONE, FAILED, INTERRUPTED, UserError, WriteError, similar_word
from attncli.feature import plugin_of, read_usable_file
from attncli.settings import LESSONS, is_offered
from attncli.views import TEXT_WIDTH, Display
from attncli.views.layout import Screen
from attncli.views.sections import Paragraph

if TYPE_CHECKING:
    from markdown_it.tree import SyntaxTreeNode

NAME = re.compile(r"(?:.*/)?([0-9]+)-([^/]+)\.md")
PROMPT = "$ attn "
COMMAND = re.compile(r"^\$ (attn .*)", re.MULTILINE)
INDENT = " " * 4

Attn = Callable[[Sequence[str]], int]
"""A function that runs a command line and returns its exit code."""


class Prose(NamedTuple):
    """A paragraph on a single line; a `literal` paragraph keeps its lines."""

    text: str
    literal: bool = False


class CommandLine(NamedTuple):
    """A command line, without its leading `attn `."""

    line: str


class Lesson(NamedTuple):
    """A page: the number and name in its file name, its title and its parts."""

    number: int
    name: str
    title: str
    parts: tuple[Prose | CommandLine, ...]


def lessons() -> list[Lesson]:
    """Return all lessons in order; each lesson builds on the earlier ones."""
    return [read_lesson(*page) for page in pages()]


def pages() -> list[tuple[int, str, str]]:
    """Return the number, name and text of each lesson whose commands are available, in order.

    Lessons from plugins, and lessons whose number is taken, are numbered after the others.
    """
    numbered: dict[int, tuple[str, str]] = {}
    others: list[tuple[str, str]] = []
    for file in LESSONS:
        name, text = NAME.fullmatch(file), read_usable_file(file)
        if name and text is not None and all(map(is_offered, COMMAND.findall(text))):
            number, page = int(name[1]), (name[2], text)
            if plugin_of(file) is None and number not in numbered:
                numbered[number] = page
            else:
                others.append(page)
    numbered |= enumerate(others, max(numbered, default=0) + 1)
    return [(number, *page) for number, page in sorted(numbered.items())]


def lesson(which: str) -> Lesson:
    """Return the lesson with that number or name. Raises UserError for any other."""
    every = lessons()
    for each in every:
        if which in (str(each.number), each.name):
            return each
    word = which.lower()
    matches = [each for each in every if word in each.name] or [
        each for each in every if word in each.title.lower()
    ]
    if not matches and (similar := similar_word(word, [each.name for each in every])):
        matches = [each for each in every if each.name == similar]
    near = [f"{each.number} {each.name}" for each in matches if len(word) > 2]
    last = every[-1].number if every else 0
    listed = near[0] if len(near) == 1 else f"one of {', '.join(near) or f'1 to {last}'}"
    raise UserError(f"lesson: no lesson is called {which:.60}: give {listed} (see attn lesson for a list)")


def copy_files(folder: Path) -> list[str]:
    """Copy the lessons' files (settings, vectors, saved reports) to a folder, and return their names.

    Raises UserError if one of them already exists, because the user may have changed it.
    """
    # Without the folder of the compiled program, which pip writes.
    shipped = sorted((file for file in LESSON_FILES.iterdir() if file.is_file()), key=lambda file: file.name)
    for file in shipped:
        if (folder / file.name).exists():
            raise UserError(f"{folder}: already has {file.name}: use another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in shipped:
            (folder / file.name).write_bytes(file.read_bytes())
    except OSError as error:
        raise WriteError(f"{folder}: cannot be written: {error.strerror}") from None
    return [file.name for file in shipped]


def read_lesson(number: int, name: str, page: str) -> Lesson:
    """Parse a lesson from its Markdown page, whose first block is the title."""
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

    title, *blocks = SyntaxTreeNode(MarkdownIt().parse(page)).children
    return Lesson(number, name, _line(title.children[0]), tuple(chain.from_iterable(map(parts_of, blocks))))


def parts_of(block: "SyntaxTreeNode") -> Iterator[Prose | CommandLine]:
    """Yield the parts of a Markdown block; from a `console` block, only the commands, which are run again."""
    match block.type:
        case "fence" if block.info == "console":
            lines = block.content.splitlines()
            yield from (CommandLine(line.removeprefix(PROMPT)) for line in lines if line.startswith(PROMPT))
        case "fence" | "html_block":
            yield Prose(block.content.rstrip(), literal=True)
        case "code_block":
            yield Prose(indent(block.content.rstrip(), INDENT), literal=True)
        case "inline":
            yield Prose(_line(block))
        case "list_item":
            first, *others = chain.from_iterable(map(parts_of, block.children))
            if isinstance(first, Prose):
                first = first._replace(text=f"{block.info}{block.markup} {first.text}")
            yield from (first, *others)
        case _:
            yield from chain.from_iterable(map(parts_of, block.children))


def _line(node: "SyntaxTreeNode") -> str:
    """Return text on one line; a link becomes its words and the lesson or address."""
    match node.type:
        case "softbreak" | "hardbreak":
            return " "
        case "code_inline":
            return f"{node.markup}{node.content}{node.markup}"
        case "em" | "strong":
            return f"{node.markup}{''.join(map(_line, node.children))}{node.markup}"
        case "link":
            words, target = "".join(map(_line, node.children)), str(node.attrs["href"])
            if page := NAME.fullmatch(target):
                return f"{words} (attn lesson {int(page.group(1))})"
            return f"{words} ({target})" if target.startswith("https://") else words
    return "".join(map(_line, node.children)) if node.children else node.content


EXAMPLES = ("attn lesson", "attn lesson 1", "attn lesson scaling", "attn lesson --copy lessons")
LESSON = argument(
    "which",
    "The number or name of a lesson; without it, all lessons are listed.",
    "LESSON",
    required=False,
    choices=[name for _, name, _ in pages()],
)
COPY = option(
    "--copy",
    "Put the files that the lessons read into a folder.",
    "FOLDER",
    everyday="put the files that the lessons read into a folder",
)


class Captured(StringIO):
    """Captures standard output, but reports the terminal's width and colours."""

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stdout

    def isatty(self) -> bool:
        """Return the answer of standard output."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the file descriptor of standard output."""
        return self._stream.fileno()


@contextmanager
def same_python() -> Iterator[None]:
    """Run the programs of a lesson with the Python that runs attn, because it has torch."""
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    try:
        yield
    finally:
        os.environ["PATH"] = path


@contextmanager
def no_input() -> Iterator[None]:
    """Give the commands of a lesson no input, because input is for the lesson itself."""
    stdin, sys.stdin = sys.stdin, StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin


def output_of(line: str, attn: Attn) -> tuple[int, str]:
    """Return the exit code and output of a command. Raises KeyboardInterrupt if it was interrupted."""
    with no_input(), redirect_stdout(Captured()) as out:
        code = attn(shlex.split(line))
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code, out.getvalue()


def pages_of(page: Lesson, display: Display, codes: list[int], attn: Attn) -> Iterator[str]:
    """Yield, alternately, the text before a command and the command's output; commands run on demand."""
    text = StringIO()
    screen = Screen(text, display)
    screen.draw(Paragraph(f"Lesson {page.number}: {page.title}", "step"))
    for part in page.parts:
        if isinstance(part, Prose):
            if part.literal:
                text.write(f"\n{part.text}\n")
            else:
                screen.draw(Paragraph(part.text, "prose"))
            continue
        text.write(f"\n{PROMPT}{part.line}\n")  # on one line, so that it can be copied
        yield text.getvalue()
        code, out = output_of(part.line, attn)
        codes.append(code)
        yield "\n" + out.lstrip("\n")
        text.seek(0)
        text.truncate()
    for after in [each for each in lessons() if each.number > page.number][:1]:
        screen.draw(Paragraph(f"Next: attn lesson {after.number}   {after.title}", "lead"))
    yield text.getvalue()


def run_lesson(page: Lesson, attn: Attn) -> int:
    """Run a lesson in a temporary folder; return 1 if one of its commands failed."""
    is_walked, is_terminal = can_walk(), sys.stdout.isatty()
    display = Display(width=width(is_terminal), colors=color_depth("auto", is_terminal))
    codes: list[int] = []
    with TemporaryDirectory() as folder, chdir(folder), same_python():
        pages = pages_of(page, display, codes, attn)
        if is_walked:
            num_commands = sum(isinstance(part, CommandLine) for part in page.parts)
            walk(pages, [*["continue", "run it"] * num_commands, "continue"], "page")
        else:
            sys.stdout.writelines(pages)
    return FAILED if any(codes) else DONE


def run(which: str | None, copy: str | None, attn: Attn) -> int:
    """Show a lesson or the list of all lessons, or copy their files."""
    if copy is not None:
        if which is not None:
            raise UserError("--copy: copies the files of all lessons: do not name a lesson")
        print(f"{copy}: {', '.join(copy_files(Path(copy)))}")
    elif which is not None:
        return run_lesson(lesson(which), attn)
    else:
        columns = width(sys.stdout.isatty()) or TEXT_WIDTH
        every = lessons()
        for each in every:
            print(fill(f"{each.number:>2}  {each.title}", columns, subsequent_indent=" " * 4))
        for first in every[:1]:
            print(f"Next: attn lesson {first.number}")  # the whole list on a screen of 24 lines
    return DONE


command = partial(Command, run=run, parameters=[LESSON, COPY, DEBUG], examples=EXAMPLES, runs_commands=True)
