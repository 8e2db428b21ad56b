"""Runs the commands that the pages show and writes their real output below them.

    python tools/refresh_outputs.py [PAGE ...]

A fenced block marked `console` holds commands behind `$ `, each followed by what it prints (standard output,
then standard error) in a terminal of 80 columns, its colours aside. In a pipe it prints the same.
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

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINES, COLUMNS = 24, 80
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def output_of(command: str, *, terminal: bool) -> str:
    """What a shell prints for a command, run at the top of the repository with this environment's `attn`.

    Standard output is a terminal of 80 columns with colours, or a pipe; nothing else is set.
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
        cwd=ROOT,
        env={"PATH": path, **environment},
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

    def rerun(match: re.Match[str]) -> str:
        commands = [line for line in match[2].splitlines() if line.startswith("$ ")]
        shown = "\n".join(f"{command}\n{output_of(command[2:], terminal=terminal)}" for command in commands)
        return f"{match[1]}{shown}{match[3]}"

    return BLOCK.sub(rerun, text)


if __name__ == "__main__":
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(refreshed(page.read_text()))
