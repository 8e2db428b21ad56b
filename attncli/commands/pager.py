"""Shows long text page by page in a terminal, with single keys as in `less`."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from select import select
from typing import NamedTuple

from attncli.commands.command import CLEAR
from attncli.system.platforms import terminal_size

LINES = 24
ABOVE = "\x1b[A"

NEXT, BACK, QUIT = "next", "back", "quit"
ESCAPE, END_OF_INPUT, RUBOUT = "\x1b", "\x04", ("\x7f", "\b")
# Arrows, Page Up and Page Down each send several characters.
MOVES = {
    **dict.fromkeys(("\n", "\r", " ", "n", "f", "j", "\x1b[B", "\x1b[C", "\x1b[6~"), NEXT),
    **dict.fromkeys(("b", "p", "k", "\x1b[A", "\x1b[D", "\x1b[5~"), BACK),
    **dict.fromkeys(("q", "Q", END_OF_INPUT), QUIT),
}
ESCAPE_SECONDS = 0.05
"""The longest wait for the rest of an arrow key's escape sequence."""
MAX_DIGITS = 6


class ReadingPlace(NamedTuple):
    """The reader's position: what Enter does next, and the number of pages, each called a `noun`."""

    enter: str
    can_go_back: bool
    num_pages: int
    noun: str

    def prompt(self, number: str = "") -> str:
        """Return the prompt for the last line, shortened to fit; `number` is the number typed so far."""
        keys = ["b: back"] * self.can_go_back
        keys += [f"1-{self.num_pages}: {self.noun}"] * (self.num_pages > 1) + ["q: quit "]
        enter = f"Enter: {f'{self.noun} {number}' if number else self.enter}"
        room, tail = _size().columns - 1, f"; {', '.join(keys)}"
        return f"{enter[: max(0, room - len(tail))]}{tail}"[:room]

    def answer(self, key: str, number: str) -> str | int | None:
        """Return the action for a key and the number typed before it, or None if the page does not exist."""
        move = MOVES.get(key)
        if number and move == NEXT:
            return int(number) if 1 <= int(number) <= self.num_pages else None
        return None if move == BACK and not self.can_go_back else move


Ask = Callable[[ReadingPlace], str | int]
"""Waits for a key; returns NEXT, BACK, QUIT, or the number of a page, from 1."""


def screens(text: str, height: int) -> Iterator[str]:
    """Split the text into parts of at most `height` lines, at a blank line if possible."""
    lines = text.rstrip("\n").split("\n")
    while len(lines) > height:
        end = next((i for i in range(height, 0, -1) if not lines[i]), height)
        yield "\n".join(lines[:end]) + "\n"
        lines = lines[end:]
    yield "\n".join(lines) + "\n"


def walk(pages: Iterable[str], names: Sequence[str], noun: str) -> None:
    """Show pages until the reader has seen the last page or quits. Pages are made on demand and kept.

    There is one page per name, and the prompt announces each page by name.
    """
    source, count = iter(pages), len(names)
    made: list[str] = []
    number = part = 0
    with asking() as ask:
        while True:
            if number > len(made):  # also makes the pages in between
                _note(f"to {noun} {number + 1} ...")
                made += [next(source) for _ in range(len(made), number)]
                _note("")
            if number == len(made):
                made.append(next(source))
            parts = list(screens(made[number], max(_size().lines - 1, 2)))
            part = len(parts) - 1 if part < 0 else min(part, len(parts) - 1)
            sys.stdout.write(parts[part])
            sys.stdout.flush()
            if count == len(parts) == 1:
                return
            is_last = part == len(parts) - 1
            enter = "more of this"
            if is_last:
                enter = f"{number + 2} of {count}, {names[number + 1]}" if number + 1 < count else "quit"
            match ask(ReadingPlace(enter, number + part > 0, count, noun)):
                case int(chosen):
                    number, part = chosen - 1, 0
                case "back":
                    number, part = (number, part - 1) if part else (number - 1, -1)
                case "next" if not is_last:
                    part += 1
                case "next" if number + 1 < count:
                    number, part = number + 1, 0
                case _:
                    return


@contextmanager
def asking() -> Iterator[Ask]:
    """Yield a function that prompts for a key and waits for it."""
    prompts: list[str] = []  # the prompt, which is printed again when the process resumes
    is_first = [True]
    with single_keys(lambda: _note(prompts[0] if prompts else "")) as read_key:

        def ask(place: ReadingPlace) -> str | int:
            if is_first:
                is_first.clear()
                discard_typed_ahead()
            number = ""
            while True:
                prompts[:] = [place.prompt(number)]
                _note(prompts[0])
                key = read_key()
                if (answer := place.answer(key, number)) is not None:
                    prompts.clear()
                    _note("")
                    return answer
                if key in RUBOUT:
                    number = number[:-1]
                else:
                    number = (number + key)[:MAX_DIGITS] if key.isdecimal() else ""

        yield ask


@contextmanager
def single_keys(again: Callable[[], None]) -> Iterator[Callable[[], str]]:
    """Yield a function that reads a single key without echo; the terminal is restored at the end.

    The terminal is also restored while the process is stopped (Ctrl-Z); `again` is called when the process
    resumes. Unread keys stay in the terminal's buffer.
    """
    import termios

    file = sys.stdin.fileno()
    before, single = termios.tcgetattr(file), termios.tcgetattr(file)
    single[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C and Ctrl-Z still send their signals
    single[6][termios.VMIN], single[6][termios.VTIME] = 1, 0

    def stop(signal_number: int, frame: object) -> None:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
        signal.signal(signal_number, signal.SIG_DFL)
        signal.raise_signal(signal_number)  # returns when the process resumes, or if it did not stop
        go_on(signal_number, frame)

    def go_on(signal_number: int, frame: object) -> None:
        signal.signal(signal.SIGTSTP, stop)
        termios.tcsetattr(file, termios.TCSADRAIN, single)
        again()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTSTP, signal.SIGCONT)}
    try:
        signal.signal(signal.SIGTSTP, stop)
        signal.signal(signal.SIGCONT, go_on)
        termios.tcsetattr(file, termios.TCSADRAIN, single)
        yield lambda: _read_key(file)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def discard_typed_ahead() -> None:
    """Discard keys that were pressed before the prompt appeared, for example during the import of torch."""
    import termios

    if sys.stdin.isatty():
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _read_key(file: int) -> str:
    """Read a key or an arrow's whole escape sequence; return END_OF_INPUT at the end of input."""
    key = os.read(file, 1).decode("latin-1") or END_OF_INPUT
    if key == ESCAPE and select([file], [], [], ESCAPE_SECONDS)[0]:
        key += os.read(file, 1).decode("latin-1")
        while key[1] in "[O" and (len(key) == 2 or not "@" <= key[-1] <= "~"):
            key += os.read(file, 1).decode("latin-1") or "~"
        key = key.replace(f"{ESCAPE}O", f"{ESCAPE}[")
    return key


def _note(text: str, *, below: bool = False) -> None:
    """Overwrite the last line; `below` means that the cursor is on the line after it."""
    over = "\n" if os.environ.get("TERM") == "dumb" else ABOVE * below + CLEAR
    print(over, text, sep="", end="", file=sys.stderr, flush=True)


def _size() -> os.terminal_size:
    columns, lines = terminal_size(sys.stdout.fileno())
    return os.terminal_size((columns, lines or LINES))
