"""Ctrl-C, SIGTERM and a closed terminal end the process quietly before a command runs and after its end.

A leaf that imports next to nothing: of a command line it is the first that is imported.
"""

import os
import signal
import sys

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_quietly() -> None:
    """From now on a signal ends the process at once: nothing has begun, or nothing is left to clean up."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for what a shell runs in the background
            signal.signal(number, _end)


def _end(signal_number: int, frame: object) -> None:
    os._exit(128 + signal_number)


def end_as_by_default() -> None:
    """In a process that was forked: it ends without a word, whatever it does."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def is_command_line() -> bool:
    """Whether this process was started as `attn` or `python -m attncli`."""
    if sys.argv[:1] != ["-m"]:
        return bool(sys.argv) and sys.argv[0].rpartition("/")[2] == "attn"
    given = sys.orig_argv
    return "-m" in given and given[given.index("-m") + 1 :][:1] == ["attncli"]
