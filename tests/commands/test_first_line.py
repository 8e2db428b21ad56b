"""The line that a terminal shows before torch is imported, and that is erased when the result is ready."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

from attncli.commands import output
from attncli.commands.command import CLEAR
from attncli.commands.output import first_words, progress_line
from attncli.models.folder import SHIPPED_MODEL
from attncli.system.plain_text import plain_text
from tools.refresh_outputs import start_attn

IMPORTED = "torch is imported"
FIRST_LINES: list[tuple[list[str], str]] = [
    (["self"], "starting torch"),
    (["heads", "--texts", "texts.txt", "-o", "texts.db"], "reading tiny-induction, 469 kB"),
    (["diff", "heads", "--set", "seed=2"], "reading tiny-induction, 469 kB"),
]


def on_terminal(arguments: Sequence[str], folder: Path, *, forked: bool = True) -> str:
    """Return the standard error and output of a command on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    if forked:
        wait = start_attn(arguments, folder=folder, environment=environment, **streams).join
    else:
        command = [sys.executable, "-m", "attncli", *arguments]
        wait = subprocess.Popen(command, cwd=folder, env=environment, **streams).wait
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # Linux's error if the other end is closed
        pass
    os.close(ours)
    wait(timeout=60)
    return b"".join(parts).decode()


@pytest.mark.parametrize(("arguments", "line"), FIRST_LINES)
def test_the_first_line_appears_before_torch_is_imported(
    arguments: list[str], line: str, tmp_path: Path
) -> None:
    """The working folder has a torch.py that prints a message and ends the program."""
    (tmp_path / "torch.py").write_text(f"import os\nos.write(2, b'{IMPORTED}')\nos._exit(0)\n")
    (tmp_path / "texts.txt").write_text("abcabc\nbcabca\n")
    shown, imported, _ = on_terminal(arguments, tmp_path, forked=False).partition(IMPORTED)
    assert imported and shown.startswith(CLEAR + line) and "\n" not in shown


def test_the_line_is_erased_when_the_result_comes(tmp_path: Path) -> None:
    shown = on_terminal(["heads", "abcabc"], tmp_path)
    before, _, result = shown.rpartition(CLEAR)
    assert before.startswith(f"{CLEAR}reading tiny-induction") and "reading" not in result
    assert "heads: tiny-induction" in result and result.rstrip().splitlines()[-1].startswith("Next")


def test_the_line_is_erased_before_a_diff(tmp_path: Path) -> None:
    before, _, result = on_terminal(["diff", "abc", "abd", "--model", SHIPPED_MODEL], tmp_path).rpartition(
        CLEAR
    )
    assert "diff:" in result.splitlines()[0] and "diff:" not in before


def test_a_terminal_reads_which_file_was_written(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("experiment: self\nsweep: {seed: [1, 2]}\n")
    on_terminal(["batch", "sweep.yaml", "-o", "runs.db"], tmp_path)
    for flags in ([], ["--tidy"]):
        assert "wrote tidy.csv" in on_terminal(["results", "runs.db", *flags, "-o", "tidy.csv"], tmp_path)
    assert on_terminal(["self", "a b", "-o", "a.json"], tmp_path).count("wrote a.json") == 1


def test_an_error_erases_it_too(tmp_path: Path) -> None:
    shown = on_terminal(["heads", "abc", "--from", "x", "--to", "x"], tmp_path)
    assert shown.rpartition(CLEAR)[2].startswith("--from: must be a token of the text (got x)"), shown


def test_seconds_are_counted_whatever_becomes_of_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds reach the terminal even while the output of transformers is suppressed."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr(output, "COUNTED_SECONDS", 0.01)
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with progress_line() as line:
            line.begin("reading a model")
            with redirect_stderr(StringIO()):
                shown = ""
                while ", 0 s" not in shown:
                    shown += os.read(ours, 1000).decode()
    os.close(ours)
    assert shown.startswith(f"{CLEAR}reading a model{CLEAR}reading a model, 0 s")


def test_the_first_line_names_the_models_and_their_sizes(tmp_path: Path) -> None:
    assert first_words([None, None]) == "starting torch"
    (tmp_path / "model.safetensors").write_bytes(bytes(1500))
    (tmp_path / "other.safetensors").write_bytes(bytes(1500))
    gguf = tmp_path / "small.gguf"
    gguf.write_bytes(bytes(2_000_000))
    one, other = f"{tmp_path.name}, 1.5 kB", "small.gguf, 2 MB"
    assert first_words([str(tmp_path), None, str(gguf), str(gguf)]) == f"reading {one}, {other}"
    assert first_words(["nobody/nothing"]) == "reading nobody/nothing from the hub"
    (hostile := tmp_path / "a\n\x1b[31m\u202e").mkdir()
    assert first_words([str(hostile)]) == f"reading {plain_text(hostile.name)}, 0 B"
