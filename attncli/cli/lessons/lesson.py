"""`attn lesson N`: prose, a command, what it prints now; in a terminal Enter continues."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

import typer

from attncli.cli.command import DONE, FAILED, INTERRUPTED, Command, argument, option
from attncli.cli.flags import DEBUG, color_depth, width
from attncli.cli.lessons.pages import PROMPT, Lesson, Prose, copy_files, lesson, lessons
from attncli.cli.main import run as run_attn
from attncli.cli.walk import can_walk, pause, show
from attncli.errors import UserError
from attncli.views import Display
from attncli.views.tables.elements import Paragraph
from attncli.views.tables.table import Screen

EXAMPLES = ("attn lesson", "attn lesson 1", "attn lesson scaling", "attn lesson --copy lessons")
LESSON = argument(
    "which", "Its number or name; without one the lessons are listed.", "LESSON", required=False
)
COPY = option("--copy", "Put the files that the lessons read into a folder.", "FOLDER")


class Captured(StringIO):
    """Captures standard output and looks like it, so that a terminal keeps its width and its colours."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        """As of standard output."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """As of standard output."""
        return self._stream.fileno()


@contextmanager
def no_input() -> Iterator[None]:
    """Commands of a lesson read no input and wait for no key: input is for the lesson itself."""
    stdin, sys.stdin = sys.stdin, StringIO()
    try:
        yield
    finally:
        sys.stdin = stdin


def output_of(line: str) -> tuple[int, str]:
    """The exit code and the output of a command; KeyboardInterrupt where it was interrupted."""
    with no_input(), redirect_stdout(Captured(sys.stdout)) as out:
        code = run_attn(shlex.split(line))
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code, out.getvalue()


def screens_of(page: Lesson, display: Display, codes: list[int]) -> Iterator[tuple[str, str]]:
    """Texts, each with what Enter does next (the last: nothing); a command runs when its turn comes."""
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
        yield text.getvalue(), "Enter: run it"
        code, out = output_of(part.line)
        codes.append(code)
        yield "\n" + out.lstrip("\n"), "Enter: continue"
        text.seek(0)
        text.truncate()
    for each in lessons():
        if each.number == page.number + 1:
            screen.draw(Paragraph(f"Next: attn lesson {each.number}   {each.title}", "lead"))
    yield text.getvalue(), ""


def run_lesson(page: Lesson) -> int:
    """The whole lesson, in a temporary folder with the files it reads; 1 where one of its commands failed."""
    is_walked, is_terminal = can_walk(), sys.stdout.isatty()
    display = Display(width=width(is_terminal), colors=color_depth("auto", is_terminal))
    codes: list[int] = []
    with TemporaryDirectory() as folder, chdir(folder):
        copy_files(Path("lessons"))
        for text, following in screens_of(page, display, codes):
            if not is_walked:
                sys.stdout.write(text)
            elif not show(text) or not following or not pause(following):
                break
    return FAILED if any(codes) else DONE


def run(which: str | None, copy: str | None) -> int:
    """A lesson, the list of all, or their files."""
    if copy is not None:
        if which is not None:
            raise UserError("--copy: is for the files of all lessons: give no lesson")
        typer.echo(f"{copy}: {', '.join(copy_files(Path(copy)))}")
    elif which is not None:
        return run_lesson(lesson(which))
    else:
        for each in lessons():
            typer.echo(f"{each.number:>2}  {each.title}")
        typer.echo("\nNext: attn lesson 1")
    return DONE


command = partial(Command, run=run, parameters=[LESSON, COPY, DEBUG], examples=EXAMPLES)
