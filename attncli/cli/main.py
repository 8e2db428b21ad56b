"""The entry point: every way to end, each with its exit code and at most one clear line an error."""

import gc
import os
import sys
from collections.abc import Sequence

import typer

from attncli.cli.app import build_app
from attncli.cli.output import ClosedPipe
from attncli.errors import UserError
from attncli.views.plain_text import plain_text

DONE, FAILED, INTERRUPTED = 0, 1, 130


def _tell(*lines: str) -> None:
    for line in lines:
        print(plain_text(line), file=sys.stderr)


def _forget_stdout() -> None:
    """Nobody reads on: what Python would still flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code."""
    debug = "--debug" in arguments
    try:
        code = build_app()(args=list(arguments), prog_name="attn", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except (BrokenPipeError, ClosedPipe):
        _forget_stdout()
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except UserError as error:
        if debug:
            raise
        _tell(*error.lines)
        return error.exit_code
    except typer.TyperException as error:
        _tell(error.format_message())
        return error.exit_code
    except typer.Abort:
        return FAILED
    except OSError as error:
        if debug:
            raise
        _tell(f"cannot write: {error.strerror}")
        _forget_stdout()
        return FAILED
    except MemoryError:
        if debug:
            raise
        _tell("out of memory: use fewer tokens or smaller sizes")
        return FAILED
    except Exception as error:  # the last resort: a mistake of ours is one line, too
        if debug:
            raise
        _tell(f"internal error: {type(error).__name__}: {error} (--debug shows where; please report it)")
        return FAILED


def main() -> None:
    """`attn`, as installed. The collector rests until what is imported has been: see load_experiment."""
    gc.disable()
    sys.exit(run(sys.argv[1:]))
