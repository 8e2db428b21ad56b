"""`attn browse` as a user runs it: it leaves a terminal as it was, and says why it opens nowhere else."""

import fcntl
import importlib.util
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from attncli.views.browser_choice import Choice
from tests.conftest import Attn

ATTN = [sys.executable, "-m", "attncli"]
SECONDS = 60


class InTerminal(NamedTuple):
    code: int
    screen: str
    is_restored: bool


def in_terminal(arguments: Sequence[str], until: str = "", keys: str = "", **environment: str) -> InTerminal:
    """Run in a terminal of 80 x 24; once the text is on it, press the keys."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*ATTN, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    seen, end = b"", time.monotonic() + SECONDS
    while process.poll() is None and time.monotonic() < end:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        if keys and until.encode() in seen:
            os.write(ours, keys.encode())
            keys = ""
    process.kill()
    while select.select([ours], [], [], 0.05)[0]:
        seen += os.read(ours, 65536)
    is_restored = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return InTerminal(process.wait(), seen.decode(errors="replace"), is_restored)


@pytest.fixture
def saved(attn: Attn, tmp_path: Path) -> str:
    path = tmp_path / "multihead.json"
    assert attn(["multihead", "--num-heads", "2", "-o", str(path)]).code == 0
    return str(path)


@pytest.mark.parametrize(("keys", "code"), [("\t??q", 0), ("\x03", 130)], ids=["q", "ctrl-c"])
def test_it_opens_in_a_terminal_and_leaves_it_as_it_was(saved: str, keys: str, code: int) -> None:
    ended = in_terminal(["browse", saved], "arrows head", keys)
    assert ended.code == code, ended.screen
    assert "weights, head 0; linear scale" in ended.screen
    assert "\x1b[?1049h" in ended.screen and ended.screen.rindex("\x1b[?1049l") > ended.screen.rindex(
        "head 0"
    )
    assert ended.is_restored and "Traceback" not in ended.screen


@pytest.mark.parametrize("name", ["standard input", "standard output", "standard error"])
def test_without_a_terminal_on_every_end_it_is_a_line(saved: str, name: str) -> None:
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("standard input", "standard output", "standard error"), theirs)
    stdin, stdout, stderr = ({**streams, name: subprocess.PIPE}).values()
    process = subprocess.Popen([*ATTN, "browse", saved], stdin=stdin, stdout=stdout, stderr=stderr)
    out, err = process.communicate(timeout=SECONDS)
    told = err.decode() if err is not None else os.read(ours, 4096).decode()
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 2 and not out
    assert told.startswith(f"browse: needs a terminal: {name} is not a terminal (")
    assert len(told.splitlines()) == 1


def test_a_dumb_terminal_is_a_line(saved: str) -> None:
    ended = in_terminal(["browse", saved], TERM="dumb")
    assert ended.code == 2
    assert ended.screen.splitlines() == ["browse: needs a terminal that can move its cursor (TERM is dumb)"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one; nothing is opened by what fails."""
    monkeypatch.setattr("attncli.commands.browse.check_terminal", lambda: None)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{norm}"], "{norm}: nothing to browse: it holds no maps between queries and keys"),
        (["{none}"], "{none}: no such file"),
        (["{self}", "--sort", "nonsense"], "--sort: must be one of entropy"),
        (["{self}", "--model", "."], "--model: is for a model: {self} holds what was computed"),
        (["{self}", "--config", "x.yaml"], "--config: is for a model: {self} holds what was computed"),
        (["--tokens", "x.txt"], "--tokens: is for a saved array: give its file"),
        (["--maps", "none"], "--maps: must be self, cross or encoder (got none)"),
        (["--scale-colors", "loud"], "--scale-colors: must be one of linear, log, row (got loud)"),
        (["--skip-sink", "-1"], "--skip-sink: must be a whole number (got -1)"),
        (["--model", "/nonexistent"], "no such folder: /nonexistent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_a_line(attn: Attn, tmp_path: Path, arguments: list[str], line: str) -> None:
    files = {name: str(tmp_path / f"{name}.json") for name in ("norm", "self", "none")}
    for name in ("norm", "self"):
        assert attn([name, "-o", files[name]]).code == 0
    ended = attn(["browse", *(argument.format(**files) for argument in arguments)])
    assert ended.code == 2 and ended.out == ""
    assert line.format(**files) in ended.err and len(ended.err.splitlines()) == 1


def test_a_missing_extra_is_a_line(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "attncli.commands.browse.find_spec", lambda name: None if name == "textual" else found(name)
    )
    ended = attn(["browse"])
    assert (ended.code, ended.out, ended.err) == (2, "", 'browse: needs: pip install "attncli[tui]"\n')


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("asked", "statistic", "best"),
    [
        (["--from", "tired", "--to", "cat"], "from_to_weight", np.nanargmax),
        (["--sort", "entropy", "--ascending"], "entropy", np.nanargmin),
    ],
)
def test_a_saved_survey_opens_in_the_order_that_it_was_asked_for(
    attn: Attn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[str],
    statistic: str,
    best: Callable[[np.ndarray], int],
) -> None:
    opened: list[Choice] = []

    def browse(choice: Choice, *, colors: str) -> int:
        opened.append(choice)
        return 0

    monkeypatch.setattr("attncli.views.browser.browse", browse)
    path = str(tmp_path / "heads.json")
    command = ["heads", "--sentence", "the cat sat as it was tired", "--maps", "self", *asked, "-o", path]
    assert attn(command).code == 0
    assert attn(["browse", path]).code == attn(["browse", path, "--sort", "distance"]).code == 0
    first, overridden = opened
    assert first.statistic == statistic and first.number == best(first.grid.statistics[statistic])
    assert overridden.number == np.nanargmax(overridden.grid.statistics["distance"])
