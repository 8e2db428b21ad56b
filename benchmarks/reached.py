"""How much code a command reaches: the modules that it loads and the files whose functions it enters.

    python benchmarks/reached.py self "the cat"     prints the counts as JSON

A reader who follows a command reads the files that it enters; a user waits for the modules that it loads.
Counts do not depend on the machine.
"""

import ast
import contextlib
import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

CLASS_OR_MODULE_BODY = 0x02
"""The flag CO_NEWLOCALS, which only the code of functions has."""


class Reached(NamedTuple):
    """Modules that were imported, statements in them, and files with a function that ran."""

    modules: int
    statements: int
    files: int


def reached(command: list[str], folder: Path) -> Reached:
    """Counts of one command, run in `folder` in a process of its own.

    Raises CalledProcessError if the command fails.
    """
    typed = [sys.executable, "-P", __file__, *command]
    printed = subprocess.run(typed, check=True, capture_output=True, text=True, cwd=folder).stdout
    return Reached(*json.loads(printed.splitlines()[-1]))


def _package() -> str:
    """The folder of the package, with a slash at its end. The package is not imported."""
    from importlib.util import find_spec

    spec = find_spec("attncli")
    assert spec is not None and spec.origin is not None
    return f"{Path(spec.origin).parent}/"


def _measure(command: list[str]) -> Reached:
    """Run the command in this process without its output."""
    package, entered = _package(), set[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & CLASS_OR_MODULE_BODY and code.co_name != "<lambda>"
        if event == "call" and is_function and code.co_filename.startswith(package):
            entered.add(code.co_filename)

    sys.argv = ["attn", *command]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from attncli.__main__ import main

            main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
    files = {file for module in sys.modules.values() if (file := getattr(module, "__file__", None))}
    ours = [Path(file) for file in files if file.startswith(package) and file.endswith(".py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in ours]
    statements = sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))
    return Reached(len(ours), statements, len(entered))


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1:])))
