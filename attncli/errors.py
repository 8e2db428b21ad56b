"""What any room may raise for the person at the keyboard: clear lines instead of a traceback."""

from collections.abc import Iterable

# How a command ends: its exit code.
DONE, FAILED, REFUSED, SOME_FAILED, NOT_WRITTEN, INTERRUPTED = 0, 1, 2, 3, 4, 130


class UserError(Exception):
    """Something the user can mend: each line says where, what, and what would work (exit 2)."""

    exit_code = REFUSED

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class RunError(UserError):
    """A run that was asked for correctly and failed all the same (exit 1)."""

    exit_code = FAILED


class WriteError(UserError):
    """A file, a store or standard output that cannot be written: no right, no room (exit 4)."""

    exit_code = NOT_WRITTEN


class ClosedPipe(Exception):
    """The reader of standard output has gone: nothing is left to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` with the known word closest to this one, or nothing where none is close."""
    from difflib import get_close_matches

    matches = get_close_matches(word.replace("-", "_"), list(known), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
