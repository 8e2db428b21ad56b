"""`--explain` and `attn lesson` at a terminal: a screen, a key, the next screen."""

import fcntl
import json
import os
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from select import select

import pytest

from attncli.commands.pager import screens
from tests.conftest import Attn
from tests.running import run
from tests.views.test_views import shown

LINES, COLUMNS = 24, 80
PROMPT = re.compile(r"q: quit $")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PATIENCE = 60
ATTN = (sys.executable, "-m", "attncli")


class Terminal:
    """A command at a terminal of 80 x 24; `screen` is the output since the last key."""

    def __init__(self, command: Sequence[str], folder: Path, **variables: str) -> None:
        self._ours, self._theirs = os.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._modes = termios.tcgetattr(self._theirs)
        environment = {**os.environ, "TERM": "xterm-256color", **variables}
        self._process = subprocess.Popen(
            command, stdin=self._theirs, stdout=self._theirs, stderr=self._theirs, cwd=folder,
            env=environment, start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.raw = ""

    @property
    def screen(self) -> str:
        return CODES.sub("", self.raw).replace("\r", "")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def read(self, until: re.Pattern[str] = PROMPT) -> bool:
        """Read up to the next prompt or the end; return True if the command waits for a key."""
        data, end = b"", time.monotonic() + PATIENCE
        while not until.search(data.decode(errors="ignore")):
            if select([self._ours], [], [], 0.02)[0]:
                data += os.read(self._ours, 2**16)
            elif self._process.poll() is not None:
                break
            assert time.monotonic() < end, data
        self.raw = data.decode()
        return bool(until.search(self.raw))

    def code(self) -> int:
        return self._process.wait(PATIENCE)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self._modes

    def left(self) -> str:
        """Return the keys that were typed and not read."""
        return os.read(self._theirs, 2**16).decode() if select([self._theirs], [], [], 0)[0] else ""

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(arguments: Sequence[str], folder: Path, **variables: str) -> Iterator[Terminal]:
    opened = Terminal([*ATTN, *arguments], folder, **variables)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved explanation, which is quick to show because torch is not imported."""
    file = tmp_path_factory.mktemp("explained") / "self.json"
    file.write_text(json.dumps(run("self", explain=True, sentence="the cat sat").to_data()))
    return file


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "none"])
def test_enter_continues_an_explanation(explained: Path, colour: bool) -> None:
    steps = json.loads(explained.read_text())["steps"]
    whole = ""
    with terminal(
        ["show", explained.name], explained.parent, **({} if colour else {"NO_COLOR": "1"})
    ) as seen:
        waiting, titles, is_colored = True, [], False
        while waiting:
            waiting = seen.read()
            is_colored |= bool(COLOUR.search(seen.raw))
            *lines, last = seen.screen.split("\n")
            assert len(lines) < LINES and all(len(line) <= COLUMNS for line in lines)
            titles += re.findall(r"^══ (\d of 8: .*?) ═", seen.screen, re.MULTILINE)
            whole += "\n".join([*lines, ""])
            if waiting:
                following = f"Enter: {len(titles) + 1} of 8, " if len(titles) < 8 else "Enter: quit; "
                assert last.startswith(following) or last.startswith("Enter: more of this")
                seen.press("\n")
        assert seen.code() == 0 and is_colored == colour
    assert titles == [f"{n} of 8: {step['title']}" for n, step in enumerate(steps, start=1)]
    report = run("self", explain=True, sentence="the cat sat")
    assert whole.split() == shown("table", [report], width=80, is_saved=True).split()


@pytest.mark.parametrize(
    ("end", "code"),
    [("q", 0), ("\x04", 0), ("\x03", 130), (signal.SIGTERM, 143)],
    ids=["q", "eof", "ctrl-c", "terminate"],
)
def test_it_ends_at_once_and_restores_the_terminal(
    explained: Path, end: str | signal.Signals, code: int
) -> None:
    with terminal(["show", explained.name], explained.parent) as seen:
        assert seen.read() and "1 of 8" in seen.screen and not seen.is_as_before()
        seen.press(end) if isinstance(end, str) else seen.send(end)
        assert not seen.read() and "2 of 8: " not in seen.screen and "Traceback" not in seen.screen
        assert seen.code() == code and seen.is_as_before()


def test_keys_after_q_are_left_for_the_shell(explained: Path) -> None:
    with terminal(["show", explained.name], explained.parent) as seen:
        assert seen.read()
        seen.press("qattn lesson 2\n")
        assert not seen.read() and seen.code() == 0
        assert seen.left() == "attn lesson 2\n"


def test_keys_pressed_before_the_first_prompt_skip_no_step(explained: Path) -> None:
    """A reader may press keys while torch is imported, before the first prompt."""
    seen = Terminal([*ATTN, "show", explained.name], explained.parent)
    try:
        seen.press("\n\n7\n q")
        assert seen.read() and "Enter: 2 of 8" in seen.screen and "══ 2 of 8" not in seen.screen
        seen.press("\n")
        while "══ 2 of 8" not in seen.screen:
            assert seen.read()
    finally:
        seen.close()


def test_single_keys_move_forward_and_back(explained: Path) -> None:
    keys = zip(["\n", " ", "n", "\x1b[B", "\x1bOB", "\x1b[6~"], 2 * ["b", "\x1b[A", "\x1b[5~"], strict=True)
    with terminal(["show", explained.name], explained.parent) as seen:
        assert seen.read() and "1 of 8" in seen.screen and "b: back" not in seen.screen
        first = seen.screen
        for forward, back in keys:
            seen.press(back + "x" + forward)  # there is no page before the first, and x has no meaning
            while "Embeddings ═" not in seen.screen:
                assert seen.read()
            assert "b: back, 1-8: step, q: quit" in seen.screen
            seen.press(back)
            assert seen.read() and seen.screen.split("\n") == first.split("\n")


def test_a_number_goes_to_that_step(explained: Path) -> None:
    def typed(text: str, expected: str) -> None:
        for key in text:
            seen.press(key)
            assert seen.read()
        assert expected in seen.screen

    with terminal(["show", explained.name], explained.parent) as seen:
        assert seen.read()
        typed("6", "Enter: step 6; 1-8: step, q: quit")
        typed("\n", "══ 6 of 8: ")
        typed("2\n", "══ 2 of 8: ")
        typed("99\n", "Enter: 3 of 8, ")  # there is no such page
        typed("5\x7f3\n", "══ 3 of 8: ")


def test_ctrl_z_and_fg_restore_the_terminal(explained: Path) -> None:
    """Ctrl-Z returns the terminal to the shell; fg shows the prompt again."""
    shell = Terminal(["bash", "--norc", "--noprofile", "-i"], explained.parent, PS1="ready> ")
    try:
        assert shell.read(re.compile("ready> "))
        shell.press(f"{shlex.join(ATTN)} show {explained.name}\n")
        assert shell.read()
        shell.press("\x1a")
        assert shell.read(re.compile("Stopped.*ready> ", re.DOTALL))
        shell.press("stty -a\n")
        assert shell.read(re.compile(r"\secho .*ready> ", re.DOTALL)) and " icanon" in shell.screen
        shell.press("fg\n")
        assert shell.read() and "Enter: 2 of 8" in shell.screen
        shell.press(" ")
        while "2 of 8: " not in shell.screen:
            assert shell.read()
        shell.press("qecho be$((1 + 1))ck\n")
        assert shell.read(re.compile("be2ck"))
    finally:
        shell.close()


def test_a_lesson_runs_each_command_when_the_reader_reaches_it(tmp_path: Path) -> None:
    with terminal(["lesson", "1"], tmp_path) as seen:
        assert seen.read() and seen.screen.endswith(
            "\n$ attn show lessons/bat-cave.json\nEnter: 2 of 5, run it; 1-5: page, q: quit "
        )
        assert "2 bat" not in seen.screen
        seen.press("\n")
        assert seen.read() and re.search(r"^2 bat .* 0\.27 ", seen.screen, re.MULTILINE)
        assert COLOUR.search(seen.raw)
        while "run it; " not in seen.screen:
            assert seen.screen.count("\n") < LINES
            seen.press("\n")
            assert seen.read()
        assert "lessons/bat-ball.json" in seen.screen
        seen.press("b")
        assert seen.read()
        seen.press("5")
        assert seen.read()
        seen.press("\n")
        assert seen.read() and "to page 5 ..." in seen.screen
        while "Enter: quit" not in seen.screen:
            seen.press("\n")
            assert seen.read()
        assert "Next: attn lesson 2" in seen.screen
        seen.press("\n")
        assert not seen.read() and seen.code() == 0
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
