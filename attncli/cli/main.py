"""The entry point: every way to end, each with its exit code and at most one clear line per error."""

import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence

import typer

from attncli.cli.app import build_app
from attncli.cli.command import DONE, FAILED, INTERRUPTED
from attncli.cli.output import ClosedPipe
from attncli.errors import UserError, WriteError
from attncli.plain_text import plain_text


def _print_errors(*lines: str) -> None:
    for line in lines:
        print(plain_text(line), file=sys.stderr)


def _forget_stdout() -> None:
    """Nobody reads on: what Python would still flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    try:
        code = build_app()(args=list(arguments), prog_name="attn", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as ended:
        # Typer's answer to a pipe that closed while it wrote help.
        if isinstance(ended.__context__, BrokenPipeError):
            return DONE
        raise
    except Exception as error:  # every failure is reported in one line; the last kind is a mistake of ours
        if "--debug" in arguments:
            traceback.print_exc()
        return _failed(error)


def _failed(error: Exception) -> int:
    match error:
        case BrokenPipeError() | ClosedPipe():
            _forget_stdout()
            return DONE
        case UserError():
            _print_errors(*error.lines)
            return error.exit_code
        case typer.TyperException():
            _print_errors(*error.format_message().splitlines())
            return error.exit_code
        case OSError():
            _print_errors(f"cannot write: {error.strerror}")
            _forget_stdout()
            return WriteError.exit_code
        case MemoryError():
            _print_errors("out of memory: use fewer tokens or smaller sizes")
        case _:
            kind = type(error).__name__
            _print_errors(f"internal error: {kind}: {error} (--debug shows where; please report it)")
    return FAILED


def _stop(signal_number: int, frame: object) -> None:
    """Ask for the end: unfinished files are removed on the way out."""
    sys.exit(128 + signal_number)


def _ask_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python drops what is raised in a weakref callback or in __del__: so an end that was asked for."""
    match unraisable.exc_value:
        case SystemExit():
            asked = signal.SIGTERM
        case KeyboardInterrupt():
            asked = signal.SIGINT
        case _:
            sys.__unraisablehook__(unraisable)
            return
    main_thread = threading.main_thread().ident or 0
    threading.Timer(0.01, signal.pthread_kill, [main_thread, asked]).start()


def main() -> None:
    """`attn`, as installed. Garbage collection is off until a command runs: see Command.invoke."""
    gc.disable()
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = _ask_again
    # Closed by the caller: nobody would see an error, or a report.
    if sys.stderr is None:
        sys.exit(FAILED)
    if sys.stdout is None:
        _print_errors("cannot write: standard output is closed")
        sys.exit(WriteError.exit_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
