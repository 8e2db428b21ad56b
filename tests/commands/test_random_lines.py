"""Random command lines with hostile values either succeed or are refused in clear lines."""

import random
from pathlib import Path

import pytest

from attncli.cli import COMMANDS, _command
from attncli.views import VIEWS
from tests.conftest import Attn

NUMBERS = ["0", "-0", "-1", "1", "3", "inf", "nan", str(10**30), "1e999", "0.5", "٣", "½", "9" * 5000]
TEXTS = [
    "",
    " ",
    "a b",
    "\x1b[31m",
    "\n",
    "\x7f",
    "a" * 5000,
    "日本語",
    "\u202eabc",
    "\udcff",
    "[1, 2]",
    "{",
    "~",
]
TEXTS += ["%s", "a=b", "=", "0:0", "0:", "99:99", ",", "entropy.mean < 2", "< 2", "cat#99", "--", "--help"]
PATHS = [
    "nothing",
    ".",
    "/dev/null",
    "/dev/zero",
    "text.txt",
    "binary.bin",
    "text.txt/x",
    "a" * 300,
    "\x1b.txt",
]
# Commands on toys, files and stores, so that no line loads a model.
CHOSEN = [
    *("average", "self", "multihead", "cross", "norm", "scale-demo", "lesson", "pitfalls"),
    *("watch", "show", "diff", "batch", "results"),
]
NOT_CHOSEN = ("debug", "follow")
"""One shows the traceback of what is refused, the other waits until Ctrl-C."""
BYTES = {name for name, view in VIEWS.items() if view.writes_bytes}
"""Formats that a test cannot read as the text of standard output."""
NUM_LINES = 100


def value_of(metavar: str, generator: random.Random) -> str:
    if generator.random() < 0.2:
        return generator.choice(NUMBERS + TEXTS)
    if "|" in metavar:
        return generator.choice([word for word in metavar.split("|") if word not in BYTES])
    is_path = any(word in metavar for word in ("FILE", "STORE", "FOLDER", "MODEL", "RUN"))
    return generator.choice(PATHS if is_path else NUMBERS if metavar == "N" else TEXTS + NUMBERS)


def random_line(generator: random.Random) -> list[str]:
    name = generator.choice(CHOSEN)
    parameters = _command(name).params
    line = [name]
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            line.append(value_of(parameter.metavar or "", generator))
    options = [
        each for each in parameters if each.param_type_name == "option" and each.name not in NOT_CHOSEN
    ]
    for option in generator.sample(options, min(len(options), generator.randint(1, 3))):
        line.append(generator.choice([*option.opts, *option.secondary_opts]))
        if not option.is_flag:
            line.append(value_of(option.metavar or "", generator))
    return line


def test_random_lines_are_done_or_refused(
    attn: Attn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*CHOSEN} <= {*COMMANDS}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BROWSER", "true")
    (tmp_path / "text.txt").write_text("the cat sat\n")
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    generator = random.Random(0)
    for _ in range(NUM_LINES):
        line = random_line(generator)
        ended = attn(line)
        assert ended.code in (0, 1, 2, 3, 4), (line, ended)
        assert "internal error" not in ended.err and "Traceback" not in ended.err, (line, ended)
        assert bool(ended.err) or ended.code == 0, (line, ended)
