"""Runs an installer, and prints every few seconds how large a folder is: pip is silent while it unpacks.

python tools/with_progress.py FOLDER COMMAND ...
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

SECONDS = 15.0
"""The time between two lines."""


def megabytes(folder: Path) -> int:
    """The size of the files in a folder; files and folders that disappear during the count are skipped."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(parent, name).lstat().st_size
    return size // 10**6


def run(folder: Path, command: Sequence[str], seconds: float = SECONDS) -> int:
    """Run the command and return its exit code."""
    begin = time.monotonic()
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                took = time.monotonic() - begin
                print(
                    f"  still installing after {took:.0f} s: {megabytes(folder)} MB in {folder}", flush=True
                )
            except KeyboardInterrupt:
                process.wait()
                return 130


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
