"""`--explain` and `attn lesson` as somebody at a terminal sees them: a screen, a key, the next screen."""

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from select import select

import pytest

from attncli.commands.output import ABOVE, CLEAR, screens
from tests.conftest import Attn
from tests.running import LESSON_FILES, run
from tests.views.test_views import shown

LINES, COLUMNS = 24, 80
PROMPT = re.compile(r"; q: end $")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PATIENCE = 60


class Terminal:
    """`attn` at a terminal of 80 x 24; `screen` is what it wrote since the last key."""

    def __init__(self, arguments: Sequence[str], folder: Path, **variables: str) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", **variables}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "attncli", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self.raw = self.prompt = ""

    @property
    def screen(self) -> str:
        return CODES.sub("", self.raw).replace("\r", "")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def read(self) -> bool:
        """Up to the next prompt, or the end; whether it waits for a key."""
        data, end = b"", time.monotonic() + PATIENCE
        with suppress(OSError):  # how a terminal ends
            while not PROMPT.search(data.decode(errors="ignore")):
                assert select([self._ours], [], [], end - time.monotonic())[0], data
                data += os.read(self._ours, 2**16)
        self.raw = data.decode().rpartition(f"{ABOVE}{CLEAR}")[2]  # without the echo of the key
        return bool(PROMPT.search(self.raw))

    def code(self) -> int:
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@contextmanager
def terminal(arguments: Sequence[str], folder: Path, **variables: str) -> Iterator[Terminal]:
    opened = Terminal(arguments, folder, **variables)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved explanation: to show it takes no torch, and so little time."""
    file = tmp_path_factory.mktemp("explained") / "self.json"
    file.write_text(json.dumps(run("self", explain=True, sentence="the cat sat").to_data()))
    return file


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "none"])
def test_an_explanation_goes_on_with_enter(explained: Path, colour: bool) -> None:
    steps = json.loads(explained.read_text())["steps"]
    whole = ""
    with terminal(
        ["show", explained.name], explained.parent, **({} if colour else {"NO_COLOR": "1"})
    ) as seen:
        waiting, titles = True, []
        while waiting:
            waiting = seen.read()
            assert bool(COLOUR.search(seen.raw)) == colour or "more of this" in whole
            *lines, last = seen.screen.split("\n")
            assert len(lines) < LINES and all(len(line) <= COLUMNS for line in lines)
            titles += re.findall(r"^══ (\d of 8: .*?) ═", seen.screen, re.MULTILINE)
            whole += "\n".join([*lines, last if not waiting else ""])
            if waiting:
                following = f"Enter: {len(titles) + 1} of 8, "
                assert last.startswith(following) or last.startswith("Enter: more of this")
                seen.press("\n")
        assert seen.code() == 0
    assert titles == [f"{n} of 8: {step['title']}" for n, step in enumerate(steps, start=1)]
    assert (
        whole.split() == shown("table", [run("self", explain=True, sentence="the cat sat")], width=80).split()
    )


@pytest.mark.parametrize(("keys", "code"), [("q\n", 0), ("\x04", 0), (None, 130)], ids=["q", "eof", "ctrl-c"])
def test_a_key_ends_it(explained: Path, keys: str | None, code: int) -> None:
    with terminal(["show", explained.name], explained.parent) as seen:
        assert seen.read() and "1 of 8" in seen.screen
        seen.press(keys) if keys else seen.interrupt()
        assert not seen.read() and "2 of 8: " not in seen.screen and "Traceback" not in seen.screen
        assert seen.code() == code


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "none"])
def test_a_lesson_runs_each_command_when_its_turn_comes(tmp_path: Path, colour: bool) -> None:
    with terminal(["lesson", "1"], tmp_path, **({} if colour else {"NO_COLOR": "1"})) as seen:
        assert seen.read() and seen.screen.endswith(
            "\n$ attn show lessons/bat-cave.json\nEnter: run it; q: end "
        )
        assert "2 bat" not in seen.screen
        seen.press("\n")
        assert seen.read() and re.search(r"^2 bat .* 0\.27 ", seen.screen, re.MULTILINE)
        assert bool(COLOUR.search(seen.raw)) == colour
        while not seen.screen.endswith("Enter: run it; q: end "):
            assert seen.screen.count("\n") < LINES
            seen.press("\n")
            assert seen.read()
        assert "lessons/bat-ball.json" in seen.screen
        waiting = True
        while waiting:
            seen.press("\n")
            waiting = seen.read()
        assert "Next: attn lesson 2" in seen.screen and seen.code() == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("height", [2, 5, 23])
def test_screens_lose_no_line_and_break_before_blank_ones(height: int) -> None:
    text = "".join(f"{'' if n % 4 == 3 else n}\n" for n in range(50)).rstrip("\n") + "\n"
    parts = list(screens(text, height))
    assert "".join(parts) == text and all(part.count("\n") <= height for part in parts)
    if height >= 5:
        assert all(part.startswith("\n") for part in parts[1:])


def test_one_step(attn: Attn, explained: Path) -> None:
    whole = attn(["show", str(explained)]).out
    fifth = attn(["show", str(explained), "--step", "5"]).out
    assert fifth.startswith("\n══ 5 of 8: Scale ") and fifth in whole
    markdown = attn(["show", str(explained), "--step", "5", "--format", "md"]).out
    assert markdown.startswith("## 5 of 8: Scale\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["self", "--step", "2"], "--step: needs --explain, whose step it shows"),
        (["self", "--explain", "--step", "9"], "--step: must be from 1 to 8, the number of steps (got 9)"),
        (["self", "--explain", "--step", "0"], "--step: must be the number of a step, from 1 (got 0)"),
        (["self", "--explain", "--step", "x"], "--step: must be the number of a step, from 1 (got x)"),
        (
            ["self", "--explain", "--step", "1", "--show", "all"],
            "--step: cannot be combined with --show: give one",
        ),
        (
            ["self", "--explain", "--step", "1", "--format", "json"],
            "--step: json does not show one step alone; it is for table, md",
        ),
        (
            ["show", str(LESSON_FILES / "bat-cave.json"), "--step", "1"],
            "--step: the report has no steps: it was made without --explain",
        ),
    ],
)
def test_steps_that_there_are_not(attn: Attn, flags: list[str], message: str) -> None:
    assert attn(flags) == (2, "", f"{message}\n")
