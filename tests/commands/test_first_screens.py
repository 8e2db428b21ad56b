"""The first screen of each command fits real terminals of three sizes."""

import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from attncli.cli import run
from tests.checkpoints import smollm2
from tests.conftest import in_turn

SCREENS = [("colour", 80, 24), ("plain", 80, 24), ("colour", 100, 30), ("plain", 160, 50)]
"""The smallest both ways, larger ones one way each: colours change characters, not lines."""
SMALL = 60, 15
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG = " ".join(f"word{i % 7}" for i in range(200))
WIDE = "我们 注意 机制 让 每个 词 看见 其他 的 词 以及 它们 的 含义 和 顺序 吧"
SENTENCES = ["the cat walks on the street", "one", " ".join("abcdefghijklmno"), LONG, WIDE]
TOYS = [
    *(["self", text] for text in SENTENCES),
    *([name, text] for name in ("multihead", "cross", "average") for text in (SENTENCES[0], LONG, WIDE)),
    *(["self", text, "--causal"] for text in (SENTENCES[0], LONG)),
    ["self", LONG, "--engine", "streaming"],
    *(["pitfalls", *which] for which in ([], ["late-mask"], ["merged-heads"], ["vocabulary-labels"])),
    ["scale-demo"], ["scale-demo", "--head-dim", "4,16,64,256"], ["norm"],
    ["diff", "self", "--set", "causal=true"], ["diff", "multihead", "--set", "seed=2"],
]  # fmt: skip
OF_FILES = [
    ["results", "sweep.db"],
    ["results", "sweep.db", "--group-by", "num_heads"],
    ["results", "sweep.db", "--statistic", "entropy.mean"],
    ["results", "survey.db"],
    ["heads", "--store", "survey.db"],
    ["show", "report.json"],
    ["show", "survey.json"],
    ["show", "weights.npy"],
    ["diff", "report.json", "causal.json"],
]
SHIPPED = [
    *([name] for name in ("heads", "ablate", "cache", "why", "circuit", "generate", "source")),
    ["cache", "--budget", "0.5"],
    ["cache", "--policy", "all"],
    ["heads", "--sort", "induction"],
    ["heads", "a b a b a b a"],
    ["circuit", "--weights"],
    ["circuit", "to be or not to be", "--head", "1:2"],
    ["generate", "--needle", "2:5", "a needle in the hay; a nee"],
    ["diff", "heads", "--set", "skip_sink=1"],
    ["heads", "--statistic", "entropy"],
    ["heads", "--rollout", "a b a b a b a"],
]
LONG_FOR_SMOLLM2 = " ".join(LONG.split()[:100])  # 200 of its tokens
ENGLISH = "When Mary and John went to the store, John gave a drink to Mary"
SMOLLM2 = [
    ["heads", LONG_FOR_SMOLLM2],
    ["why", ENGLISH],
    pytest.param(["generate", ENGLISH, "--max-new-tokens", "12"], marks=pytest.mark.nightly),
    pytest.param(["diff", ENGLISH, ENGLISH.replace("John gave", "Mary gave")], marks=pytest.mark.nightly),
]
PARTS = [
    ("heads", ["heads", "--table"]),
    ("generate", ["generate", "--show", "rows"]),
    ("why", ["why", "--show", "all"]),
    ("diff", ["diff", "self", "--set", "causal=true", "--show", "weights"]),
    ("self", ["self", LONG, "--show", "weights"]),
]
MAKES = {
    "sweep.db": ["batch", "sweep.yaml", "-o"],
    "survey.db": ["heads", "--texts", "texts.txt", "-o"],
    "survey.json": ["heads", "--texts", "texts.txt", "-o"],
    "report.json": ["self", "-o"],
    "causal.json": ["self", "--causal", "-o"],
}
"""The stores and reports that first screens are of, and the commands that make them."""
EXPERIMENTS = {"report.json": "self", "survey.json": "heads"}


@contextmanager
def at_terminal(columns: int, lines: int, said: list[bytes]) -> Iterator[None]:
    """Make standard output a terminal of this size, and collect the bytes written to it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read() -> None:
        while True:
            try:
                said.append(os.read(ours, 2**16))
            except OSError:  # the terminal was closed
                return

    reader = Thread(target=read)
    reader.start()
    before, sys.stdout = sys.stdout, os.fdopen(theirs, "w")
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = before
        reader.join()
        os.close(ours)


def screen(arguments: list[str], columns: int, lines: int) -> list[str]:
    """Return the lines on the terminal without colour codes."""
    said: list[bytes] = []
    with at_terminal(columns, lines, said):
        assert run(arguments) == 0
    return CODES.sub("", b"".join(said).decode()).replace("\r", "").splitlines()


def save_inputs(folder: Path) -> None:
    """Save the files that `MAKES` and `OF_FILES` read."""
    sweep = (
        "experiment: multihead\nsweep: {num_heads: [1, 2, 4, 8], causal: [false, true], seed: [0, 1, 2]}\n"
    )
    (folder / "sweep.yaml").write_text(sweep)
    (folder / "texts.txt").write_text("a b a b a b\nthe cat sat on the cat sat\nx y z x y z x\n")
    np.save(folder / "weights.npy", np.tril(np.ones((40, 40))) / np.arange(1, 41)[:, None])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the stores and reports that the screens show."""
    folder = tmp_path_factory.mktemp("made")
    save_inputs(folder)
    with chdir(folder):
        for name, arguments in MAKES.items():
            assert run([*arguments, name]) == 0
    return folder


def assert_fits(arguments: list[str], columns: int, lines: int, name: str, *, saved: bool = False) -> None:
    found = screen(arguments, columns, lines)
    text = "\n".join(found)
    assert len(found) < lines, f"the prompt takes a line: {len(found)} of {lines}\n{text}"
    assert max(map(cell_len, found)) <= columns, text
    assert found[0].startswith(f"{name}") or name == "diff", text
    assert found[-1].startswith(f"Next, with attn {'show' if saved else name}: "), text
    assert "─────" in text or "layer" in text or "0.0" in text, "a table with its header, or a map"


@pytest.fixture
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    set_colours("colour", monkeypatch)


def set_colours(colours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if colours == "plain":
        monkeypatch.setenv("NO_COLOR", "1")


def words_of(value: Any) -> str:
    return " ".join(value)[:40] if isinstance(value, list) else str(value)


@pytest.mark.parametrize(
    ("arguments", "colours", "columns", "lines"), in_turn([*TOYS, *OF_FILES], SCREENS), ids=words_of
)
def test_a_first_screen_fits_its_terminal(
    arguments: list[str], colours: str, columns: int, lines: int, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    set_colours(colours, monkeypatch)
    name = EXPERIMENTS.get(arguments[-1], arguments[0])
    assert_fits(arguments, columns, lines, name, saved=arguments[0] == "show")


@pytest.mark.parametrize(("colours", "columns", "lines"), SCREENS)
@pytest.mark.parametrize("arguments", [[], ["lesson"]], ids=["attn", "lesson"])
def test_screens_without_a_report_fit(
    arguments: list[str], colours: str, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_colours(colours, monkeypatch)
    found = screen(arguments, columns, lines)
    assert len(found) < lines and max(map(cell_len, found)) <= columns
    assert any(line.startswith("Next:") for line in found[-5:])


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize(("name", "arguments"), PARTS, ids=[" ".join(words)[:40] for _, words in PARTS])
def test_longer_output_ends_with_next_steps(
    name: str, arguments: list[str], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    *_, last = found = screen(arguments, 80, 24)
    assert len(found) > 24 and last.startswith(f"Next, with attn {name}: ")
    assert "--table" not in last and "--show all" not in last


@pytest.mark.parametrize("arguments", [*TOYS, *OF_FILES], ids=lambda words: " ".join(words)[:40])
def test_nothing_is_wider_than_a_small_terminal(
    arguments: list[str], made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    set_colours("plain", monkeypatch)
    assert max(map(cell_len, screen(arguments, *SMALL))) <= SMALL[0]


def assert_a_report_fits(arguments: list[str], saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the model once, and show its report on screens of every size, the smallest only in colour."""
    assert run([*arguments, "-o", str(saved)]) == 0
    for colours, columns, lines in (SCREENS[0], *SCREENS[2:]):
        set_colours(colours, monkeypatch)
        assert_fits(["show", str(saved)], columns, lines, arguments[0], saved=True)
    set_colours("plain", monkeypatch)
    assert max(map(cell_len, screen(["show", str(saved)], *SMALL))) <= SMALL[0]


@pytest.mark.parametrize("arguments", SHIPPED, ids=lambda words: " ".join(words)[:40])
def test_first_screens_of_the_shipped_model_fit(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_a_report_fits(arguments, tmp_path / "report.json", monkeypatch)
    if len(arguments) == 1:
        set_colours("colour", monkeypatch)
        assert_fits(arguments, 80, 24, arguments[0])


@pytest.mark.parametrize("arguments", SMOLLM2, ids=words_of)
def test_first_screens_of_a_model_of_270_heads_fit(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_model = [arguments[0], "--model", str(smollm2()), *arguments[1:]]
    assert_a_report_fits(of_model, tmp_path / "report.json", monkeypatch)


@pytest.mark.usefixtures("colours")
def test_the_last_queries_of_a_causal_sentence_stay() -> None:
    letters = " ".join("abcdefghijklmno")
    rows = [line for line in screen(["self", letters, "--causal"], 80, 24) if re.match(r" ?\d+ [a-o] ", line)]
    assert rows[-1].startswith("14 o") and not rows[0].startswith(" 0 a")
    tall = screen(["self", letters], 160, 50)
    assert sum(bool(re.match(r" ?\d+ [a-o] ", line)) for line in tall) == 15
    assert not any(line.startswith("Not shown") for line in tall)


@pytest.mark.usefixtures("colours")
def test_lines_are_honoured_at_a_terminal_and_a_pipe_is_never_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LINES, which another program may have set, does not shorten the output of a script."""

    def piped() -> str:
        run(["self", LONG])
        return capsys.readouterr().out

    usual = piped()
    for lines in (20, 60):
        monkeypatch.setenv("LINES", str(lines))
        assert len(screen(["self", LONG], 80, 24)) == lines - 1
        assert piped() == usual
