"""Ctrl-C, SIGTERM and a closed terminal end the process quietly before and after a command runs.

This module imports almost nothing, because a command line imports it first.
"""

import os
import signal
import sys

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_quietly() -> None:
    """Let signals end the process immediately from now on: no work has begun, or no cleanup remains."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored, as for a shell's background jobs
            signal.signal(number, _end)


def _end(signal_number: int, frame: object) -> None:
    os._exit(128 + signal_number)


def end_as_by_default() -> None:
    """Let signals end a forked process without a message."""
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def is_command_line() -> bool:
    """Return True if this process was started as `attn` or `python -m attncli`."""
    if sys.argv[:1] != ["-m"]:
        return bool(sys.argv) and sys.argv[0].rpartition("/")[2] == "attn"
    arguments = sys.orig_argv
    return "-m" in arguments and arguments[arguments.index("-m") + 1 :][:1] == ["attncli"]
