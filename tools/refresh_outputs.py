"""Runs the commands that the pages show and writes their real output below them.

    python tools/refresh_outputs.py

A fenced block marked `console` holds commands behind `$ `, each followed by what it prints (standard output,
then standard error) in a terminal of 80 columns.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
# The same digits on every processor.
SETTING = {
    "COLUMNS": "80",
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
}
BLOCK = re.compile(r"(```console\n)(.*?)(```)", re.DOTALL)


def output_of(command: str) -> str:
    """What a shell prints for a command, run at the top of the repository with this environment's `attn`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": os.environ.get("HOME", "/"), "LC_ALL": "C.UTF-8", **SETTING}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, env=environment)
    lines = (done.stdout + done.stderr).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def refreshed(text: str) -> str:
    """The page with the output of every command as it is now."""

    def rerun(match: re.Match[str]) -> str:
        commands = [line for line in match[2].splitlines() if line.startswith("$ ")]
        shown = "\n".join(f"{command}\n{output_of(command[2:])}" for command in commands)
        return f"{match[1]}{shown}{match[3]}"

    return BLOCK.sub(rerun, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
