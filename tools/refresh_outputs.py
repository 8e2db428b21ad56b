"""Runs the commands that the pages show and writes their real output below them.

    python tools/refresh_outputs.py [PAGE ...]

A fenced block marked `console` holds commands behind `$ `, each followed by what it prints (standard output,
then standard error) in a terminal of 80 columns, its colours aside. In a pipe it prints the same. The
commands of a page share a new directory with a copy of configs/ in it.
"""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINES, COLUMNS = 24, 80
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def output_of(command: str, folder: str, *, terminal: bool) -> str:
    """What a shell prints for a command, run in a folder with this checkout's `attn`.

    Standard output is a terminal of 80 columns with colours, or a pipe; no variable changes what is printed.
    """
    ours, theirs = os.openpty() if terminal else os.pipe()
    if terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    with subprocess.Popen(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={"PATH": path, "PYTHONPATH": str(ROOT), **environment},
    ) as process:
        os.close(theirs)
        out = b""
        with suppress(OSError):  # how a terminal ends
            while block := os.read(ours, 2**16):
                out += block
        os.close(ours)
        assert process.stderr is not None
        lines = [*out.decode().splitlines(), *process.stderr.read().splitlines()]
    return "".join(f"{COLOUR.sub('', line).rstrip()}\n" for line in lines)


def refreshed(text: str, *, terminal: bool = True) -> str:
    """The page with the output of every command as it is now."""
    with TemporaryDirectory() as folder:
        copytree(ROOT / "configs", f"{folder}/configs")

        def rerun(match: re.Match[str]) -> str:
            commands = [line for line in match[2].splitlines() if line.startswith("$ ")]
            outputs = [output_of(command[2:], folder, terminal=terminal) for command in commands]
            shown = [f"{command}\n{output}" for command, output in zip(commands, outputs, strict=True)]
            return "".join([match[1], "\n".join(shown), match[3]])

        return BLOCK.sub(rerun, text)


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(refreshed(page.read_text()))
