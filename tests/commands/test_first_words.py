"""The ways to give a command a text, and the parts of a report to show."""

import io
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from attncli.settings.text import SENTENCE
from tests.conftest import Attn
from tests.forked import run_attn
from tools.refresh_outputs import start_attn

ATTN = [sys.executable, "-m", "attncli"]


def tokens(out: str) -> list[str]:
    found: list[str] = json.loads(out)["tokens"]
    return found


def test_a_pipe_and_a_redirected_file_are_read(tmp_path: Path) -> None:
    command = ["self", "--format", "json"]
    piped = run_attn(command, given="the dog sleeps\n")
    assert tokens(piped.out) == ["the", "dog", "sleeps"] and piped.err == ""
    text = tmp_path / "text.txt"
    text.write_text("a red fox")
    assert tokens(run_attn(command, given=text).out) == ["a", "red", "fox"]
    assert tokens(run_attn([*command, "my own"], given="not this").out) == ["my", "own"]


@pytest.mark.nightly
def test_an_empty_pipe_and_a_device_are_no_text() -> None:
    command = ["self", "--format", "json"]
    for given in ("", Path(os.devnull)):
        ended = run_attn(command, given=given)
        assert tokens(ended.out) == SENTENCE.split() and ended.err == ""
    closed = subprocess.run(
        f"{shlex.join([*ATTN, *command])} <&-", shell=True, capture_output=True, text=True
    )
    assert tokens(closed.stdout) == SENTENCE.split() and closed.stderr == ""


@pytest.mark.parametrize("kind", ["pipe", "pipe that does not wait", "socket"])
def test_a_text_that_comes_late_is_read_to_its_end(kind: str) -> None:
    read, write = os.pipe() if kind != "socket" else (each.detach() for each in socket.socketpair())
    os.set_blocking(read, kind != "pipe that does not wait")
    told, stderr = os.pipe()
    with TemporaryFile("w+") as out, os.fdopen(told) as errors:
        process = start_attn(
            ["self", "--format", "json"],
            folder=Path.cwd(),
            environment=os.environ,
            stdin=read,
            stdout=out.fileno(),
            stderr=stderr,
        )
        os.close(read)
        os.close(stderr)
        assert errors.readline().startswith("stdin: waiting for text (to avoid this, give a text")
        os.write(write, b"the dog ")
        time.sleep(0.3)
        os.write(write, b"sleeps")
        os.close(write)
        process.join()
        out.seek(0)
        assert tokens(out.read()) == ["the", "dog", "sleeps"]
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["self", "--head-dim", "0"], 2),
        pytest.param(["circuit", "--weights"], 0, marks=pytest.mark.nightly),
        (["self", "the cat"], 0),
    ],
)
def test_an_open_pipe_is_not_waited_for_without_need(command: list[str], code: int) -> None:
    """Invalid settings are reported at once, and a command that needs no text leaves the pipe unread."""
    read, write = os.pipe()
    ended = run_attn(command, given=Path(f"/dev/fd/{read}"))
    assert ended.code == code and "waiting" not in ended.err
    os.close(read)
    os.close(write)


def test_a_pipe_is_read_beside_a_file_for_the_context_and_as_many_texts(tmp_path: Path) -> None:
    (tmp_path / "context.txt").write_text("der hund")
    command = ["cross", "--context-file", "context.txt", "--format", "json"]
    assert tokens(run_attn(command, given="the dog", folder=tmp_path).out) == ["the", "dog"]
    lines = "text,kind\na b,x\n"
    without_label = run_attn(["separate"], given=lines)
    assert without_label.code == 2 and without_label.err.startswith("stdin: texts: needs label")
    assert run_attn(["separate", "--label", "color"], given=lines).err.startswith(
        "<stdin>:1: must have a column"
    )


@pytest.mark.parametrize("name", ["self", "heads"])
def test_a_dash_is_standard_input(attn: Attn, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    command = [name, "--format", "json"]
    for flags in (["-"], ["--file", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcabc")))
        report = attn([*command, *flags]).out
        assert json.loads(report)["spec"]["file"] == "-"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abcabc")))
    assert json.loads(attn([*command, "abcabc"]).out)["tokens"] == json.loads(report)["tokens"]
    assert "--file: cannot be combined with the argument (-)" in attn([name, "-", "--file", "-"]).err


def test_parts_are_chosen_by_name(attn: Attn) -> None:
    weights = attn(["self", "a b c", "--show", "weights"]).out
    assert "weights (query × key)" in weights and "entropy" not in weights and "output" not in weights
    both = attn(["self", "a b c", "--show", "rows,output"]).out
    assert "entropy" in both and "output (query × dim)" in both and "weights (" not in both
    everything = attn(["self", "a b c", "--show", "all"]).out
    assert all(
        title in everything for title in ("input (", "scores (", "weights (", "output (", "statistics")
    )


@pytest.mark.parametrize("view", ["table", "heatmap"])
def test_a_part_that_no_report_has_is_an_error(attn: Attn, tmp_path: Path, view: str) -> None:
    command = ["norm", "--show", "output", "--format", view]
    said = (
        "--show: this report holds no output; it has statistics, input, batch_norm, "
        "batch_norm_eval, layer_norm, rms_norm, agreement_with_torch, running_mean, running_variance\n"
    )
    assert attn(command) == (2, "", said)
    assert attn([*command, "-o", str(tmp_path / "x")]).code == 2 and not (tmp_path / "x").exists()
    both = tmp_path / "both.yaml"
    both.write_text("steps: [{experiment: norm}, {experiment: self}]")
    assert attn(["batch", str(both), "--show", "output", "--format", view]).code == 0
    both.write_text("steps: [{experiment: norm}, {experiment: norm}]")
    assert attn(["batch", str(both), "--show", "output", "--format", view])[::2] == (2, said)


def test_scores_stand_before_scaled_ones_in_csv_with_and_without_an_explanation(attn: Attn) -> None:
    for flags in ([], ["--explain"], ["--differential", "--explain"]):
        header = attn(["self", "a b", *flags, "--embed-dim", "4", "--format", "csv"]).out.splitlines()[0]
        assert ",score,scaled_score," in header and header.endswith(",weight")


def test_parts_of_a_whole_report_are_refused(attn: Attn) -> None:
    ended = attn(["self", "--show", "all", "--format", "json"])
    message = "--show: json always holds the whole report; --show works with table,"
    assert ended.code == 2 and ended.err.startswith(message)
