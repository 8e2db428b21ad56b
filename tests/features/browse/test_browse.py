"""`attn browse` in a terminal, which it restores, and its errors without one."""

import fcntl
import importlib.util
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import attncli
from attncli.errors import UserError
from attncli.features.browse.browser_choice import BrowsedModel, Choice
from attncli.records.report import Report
from tests.conftest import Attn
from tests.model_folders import save_writer
from tools.refresh_outputs import start_attn

ATTN = [sys.executable, "-m", "attncli"]
SECONDS = 60


class InTerminal(NamedTuple):
    code: int
    screen: str
    is_restored: bool


def in_terminal(
    arguments: Sequence[str], *steps: tuple[str, str | signal.Signals], **environment: str
) -> InTerminal:
    """Run in a terminal of 80 x 24; once the text of a step is on it, press its keys or send its signal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = start_attn(
        arguments,
        folder=Path.cwd(),
        environment={**os.environ, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    assert process.pid is not None
    seen, begin, left, end = b"", 0, [*steps], time.monotonic() + SECONDS
    while process.exitcode is None and time.monotonic() < end:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 65536)
        if left and left[0][0].encode() in seen[begin:]:
            begin, (_, keys) = len(seen), left.pop(0)
            if isinstance(keys, signal.Signals):
                os.kill(process.pid, keys)
            else:
                os.write(ours, keys.encode())
    process.kill()
    while select.select([ours], [], [], 0.05)[0]:
        seen += os.read(ours, 65536)
    is_restored = termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    process.join()
    assert process.exitcode is not None
    return InTerminal(process.exitcode, seen.decode(errors="replace"), is_restored)


@pytest.fixture
def saved(attn: Attn, tmp_path: Path) -> str:
    path = tmp_path / "multihead.json"
    assert attn(["multihead", "--num-heads", "2", "-o", str(path)]).code == 0
    return str(path)


@pytest.mark.parametrize(
    ("keys", "code"),
    [("\t??q", 0), ("\x03", 130), (signal.SIGTERM, 143)],
    ids=["q", "ctrl-c", "terminate"],
)
def test_the_terminal_is_restored(saved: str, keys: str | signal.Signals, code: int) -> None:
    ended = in_terminal(["browse", saved], ("arrows head", keys))
    assert ended.code == code, ended.screen
    assert "weights, head 0; linear scale" in ended.screen
    assert "\x1b[?1049h" in ended.screen and ended.screen.rindex("\x1b[?1049l") > ended.screen.rindex(
        "head 0"
    )
    assert ended.is_restored and "Traceback" not in ended.screen


def test_a_model_is_measured_in_a_terminal() -> None:
    ended = in_terminal(
        ["browse", "abcabcabc"],
        ("arrows head", "a"),
        ("without 0:0: loss ", "w"),
        ("to the logit of ", "e"),
        ("Enter runs the model again", "cab\r"),
        ("13 tokens", "q"),
    )
    assert ended.code == 0 and ended.is_restored, ended.screen
    assert "Traceback" not in ended.screen


@pytest.mark.parametrize("name", ["standard input", "standard output"])
def test_missing_terminals_are_refused_in_one_line(saved: str, name: str) -> None:
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


def test_a_dumb_terminal_is_refused(saved: str) -> None:
    ended = in_terminal(["browse", saved], TERM="dumb")
    assert ended.code == 2
    assert ended.screen.splitlines() == ["browse: needs a terminal that can move its cursor (TERM is dumb)"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that there is a terminal. Commands that fail open nothing."""
    monkeypatch.setattr("attncli.features.browse.question.check_terminal", lambda: None)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{norm}"], "{norm}: has no maps between queries and keys to browse"),
        (["{self}", "--sort", "nonsense"], "--sort: must be one of entropy"),
        (
            ["a text", "--sentence", "another"],
            "--sentence: cannot be combined with the argument (a text): use one of them",
        ),
        (["word " * 2000, "--model", "/nonexistent"], "no such folder: /nonexistent"),
        (["{self}", "--model", "."], "--model: needs a model, but {self} is a saved report"),
        (["--tokens", "x.txt"], "--tokens: only applies to a saved array: add the file of the array"),
        (["--head", "first"], "--head: must be a layer and a head, such as 5:11 (got first)"),
        (["abab", "--head", "2:0"], "--head: must be from 0:0 to 1:3 for tiny-induction (got 2:0)"),
        (["abab", "--from", "x"], "--from: must be a token of the text (got x)"),
        (["abab", "--texts", "x"], "--texts: is not a flag of attn browse"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(attn: Attn, tmp_path: Path, arguments: list[str], line: str) -> None:
    files = {name: str(tmp_path / f"{name}.json") for name in ("norm", "self", "none")}
    for name in ("norm", "self"):
        assert attn([name, "-o", files[name]]).code == 0
    ended = attn(["browse", *(argument.format(**files) for argument in arguments)])
    assert ended.code == 2 and ended.out == ""
    assert line.format(**files) in ended.err and len(ended.err.splitlines()) == 1


def test_a_missing_extra_is_named(attn: Attn, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "attncli.features.browse.question.find_spec", lambda name: None if name == "textual" else found(name)
    )
    ended = attn(["browse"])
    assert (ended.code, ended.out, ended.err) == (2, "", 'browse: needs: pip install "attncli[tui]"\n')


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Choice, BrowsedModel]]:
    """Collect what would be browsed, without opening it."""
    kept: list[tuple[Choice, BrowsedModel]] = []

    def browse(choice: Choice, *, colors: str, model: BrowsedModel) -> int:
        kept.append((choice, model))
        return 0

    monkeypatch.setattr("attncli.features.browse.question.check_terminal", lambda: None)
    monkeypatch.setattr("attncli.features.browse.browser.browse", browse)
    return kept


@pytest.mark.parametrize(
    ("asked", "statistic", "best"),
    [
        (["--from", "tired", "--to", "cat"], "from_to_weight", np.nanargmax),
        (["--sort", "entropy", "--ascending"], "entropy", np.nanargmin),
    ],
)
def test_a_saved_survey_opens_in_its_order(
    attn: Attn,
    tmp_path: Path,
    opened: list[tuple[Choice, BrowsedModel]],
    asked: list[str],
    statistic: str,
    best: Callable[[np.ndarray], int],
) -> None:
    path = str(tmp_path / "heads.json")
    command = ["heads", "--sentence", "the cat sat as it was tired", "--maps", "self", *asked, "-o", path]
    assert attn(command).code == 0
    assert attn(["browse", path]).code == attn(["browse", path, "--sort", "distance"]).code == 0
    (first, model), (overridden, _) = opened
    assert model is None
    assert first.ranking.statistic == statistic and first.number == best(first.grid.statistics[statistic])
    assert overridden.number == np.nanargmax(overridden.grid.statistics["distance"])


TEXT = "abcdabcdabcd"


def test_the_browsed_model_matches_heads_ablate_and_why(
    attn: Attn, opened: list[tuple[Choice, BrowsedModel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edited text is read without loading the model again."""
    assert attn(["browse", TEXT]).code == 0
    ((choice, model),) = opened
    assert model.text == TEXT and choice.query == len(choice.grid.report.tokens) - 1

    def report_of(*arguments: str) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(attn([*arguments, "--format", "json"]).out)
        return data

    def assert_same(report: Report, text: str) -> None:
        expected = report_of("heads", text, "--maps", "self")
        np.testing.assert_allclose(report.tensors["weights"].values, expected["tensors"]["weights"]["values"])
        names = [row["pattern"] for row in expected["statistics"]["heads"]]
        assert [row["pattern"] for row in report.table("heads")] == names

    assert_same(choice.grid.report, TEXT)
    heads = choice.grid.head_name(0), choice.grid.head_name(choice.grid.num_places - 1)
    ablated = report_of("ablate", TEXT, "--heads", ",".join(heads), "--jointly")["statistics"]
    assert model.without(heads) == pytest.approx(ablated["joint"])
    alone = model.without(heads[1:])
    (row,) = (row for row in ablated["heads"] if f"{row['layer']}:{row['head']}" == heads[1])
    assert alone == pytest.approx({name: row[name] for name in alone})
    assert set(alone) == {"loss", "kl"}
    added, why = model.addition(heads[0]), attncli.why(attncli.open_model(), TEXT, head=heads[0])
    rows = sorted(why.heads, key=lambda row: -abs(row["contribution"]))
    ranks = [f"{row['layer']}:{row['head']}" for row in rows]
    assert added.rank == 1 + ranks.index(heads[0]) and added.num_heads == len(ranks)
    assert added.contribution == pytest.approx(rows[added.rank - 1]["contribution"])
    assert [number for _, number in added.keys] == pytest.approx(why.keys.column("contribution").tolist())
    assert added.keys[1][0] == "1 " + choice.grid.report.tokens[1] and added.logit == pytest.approx(
        why.parts["logit"]
    )
    with monkeypatch.context() as patched:
        patched.setattr("attncli.models.loading.load_pretrained", None)
        looked = model.look("dcba" * 3)
    assert_same(looked, "dcba" * 3)
    assert model.text == "dcba" * 3
    with pytest.raises(UserError):
        model.look("a" * 3000)
    assert model.text == "dcba" * 3


def test_it_opens_at_a_head_and_a_token(
    attn: Attn, opened: list[tuple[Choice, BrowsedModel]], tmp_path: Path
) -> None:
    """Test a model and a saved report, ranked or not. Another text needs no such token."""
    saved = str(tmp_path / "heads.json")
    ranked = ["--from", "c#2", "--to", "b"]
    assert attn(["heads", TEXT, *ranked, "--maps", "self", "-o", saved]).code == 0
    for flags in ([TEXT, "--from", "c#2"], [TEXT, *ranked], [saved]):
        assert attn(["browse", *flags, "--head", "1:2"]).code == 0
        assert attn(["browse", *flags]).code == 0
    assert [choice.head for choice, _ in opened[::2]] == ["1:2"] * 3
    assert {choice.token_labels[choice.token].split()[0] for choice, _ in opened} == {"7"}
    _, model = opened[0]
    model.look("dada")
    assert model.position is None


def test_200_tokens_keep_all_weights(
    attn: Attn, opened: list[tuple[Choice, BrowsedModel]], tmp_path: Path
) -> None:
    save_writer(tmp_path, "GPT-2")
    assert attn(["browse", "the cat " * 100, "--model", str(tmp_path)]).code == 0
    (choice, _), *_ = opened
    assert choice.grid.name == "weights" and choice.matrix.values.shape == (202, 202)


@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_an_argument_that_is_not_a_file_is_a_text(
    attn: Attn, opened: list[Any], suffix: str, tmp_path: Path
) -> None:
    missing = str(tmp_path / f"heads{suffix}")
    assert attn(["browse", missing]).err == f"{missing}: no such file\n"
    assert attn(["browse", f"abab a{suffix}"]).code == 0 and opened
