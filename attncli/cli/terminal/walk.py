"""Text on a terminal a screen at a time, for as long as the reader presses Enter."""

import os
import sys
from collections.abc import Iterator

LINES = 24
ENDS = ("q", "quit")
CLEAR = "\r\x1b[K"
ABOVE = "\x1b[A"


def can_walk() -> bool:
    """Whether there is a reader: someone who sees a screen and has a key to press."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def screens(text: str, height: int) -> Iterator[str]:
    """The text in parts of at most that many lines, cut before blank lines where there are any."""
    lines = text.rstrip("\n").split("\n")
    while len(lines) > height:
        end = next((i for i in range(height, 0, -1) if not lines[i]), height)
        yield "\n".join(lines[:end]) + "\n"
        lines = lines[end:]
    yield "\n".join(lines) + "\n"


def show(text: str) -> bool:
    """Write a text, a pause after each screen of it but the last; whether the reader goes on."""
    *before, last = screens(text, max(_size().lines - 1, 2))
    for screen in before:
        sys.stdout.write(screen)
        if not pause("Enter: more of this"):
            return False
    sys.stdout.write(last)
    return True


def pause(what: str) -> bool:
    """Wait for Enter, with what it does on the last line; whether the reader goes on: q, or no key, ends."""
    import termios  # which Windows has not

    sys.stdout.flush()
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # keys that were pressed while something was computed
    prompt = f"{what}; q: end "[: _size().columns - 1]
    print(prompt, end="", file=sys.stderr, flush=True)
    answer = ""
    try:
        answer = sys.stdin.readline()
    finally:
        # The line of the prompt is for the screen that follows; Enter has moved the cursor below it.
        can_move = os.environ.get("TERM") != "dumb"
        erased = (ABOVE if answer.endswith("\n") else "") + CLEAR if can_move else "\n"
        print(erased, end="", file=sys.stderr, flush=True)
    return answer != "" and answer.strip().lower() not in ENDS


def _size() -> os.terminal_size:
    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    return os.terminal_size((columns or 80, lines or LINES))
