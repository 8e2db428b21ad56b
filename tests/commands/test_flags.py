"""Everyday help, the help of all flags, and flags that a command lacks."""

import json
import re
from pathlib import Path

import pytest

import attncli
from attncli.cli import COMMANDS
from attncli.settings import SPECS
from attncli.views.matrices import parts_of
from attncli.views.tables import shown_names_of
from tests.conftest import Attn

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "attncli" / "data" / "tiny-induction"
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
NAME = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", COMMANDS)
def test_everyday_help_is_one_screen(attn: Attn, name: str) -> None:
    out = attn([name, "--help"]).out
    lines = out.splitlines()
    assert COMMANDS[name].summary in out and out.index("Examples:") < out.index("Options:")
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    names = NAME.findall(out)
    assert len(names) <= 20
    every = attn([name, "--help-all"]).out
    others = {*NAME.findall(every)} - {*names}
    assert {*names} <= {*NAME.findall(every)} and others
    for flag in NAME.findall(every):
        after = every[re.search(rf"^  (?:-\w, )?{flag}\b", every, re.MULTILINE).end() :]  # type: ignore[union-attr]
        assert re.match(r"[^\n]*(  \S|\n {10,}\S)", after), f"{flag} has no description"
    assert lines[-1] == f"--help-all shows {len(others)} more flag{'s' * (len(others) > 1)}."
    assert attn([name, "-h"]).out == out


@pytest.mark.parametrize(("name", "flags"), [("cache", {"--texts", "--text-group"}), ("why", {"--context"})])
def test_flags_that_a_command_refuses_are_not_in_its_help(attn: Attn, name: str, flags: set[str]) -> None:
    for flag in flags - {"--text-group"}:
        ended = attn([name, "to be or", flag, __file__])
        assert ended.code == 2 and ended.err.startswith(f"{flag}: is ")
    assert not flags & {*NAME.findall(attn([name, "--help-all"]).out)}


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name].parts])
def test_parts_that_no_report_has_are_refused_before_it_is_made(
    attn: Attn, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Help lists the parts that the command's reports have."""
    parts = SPECS[name].parts
    assert f"{', '.join(parts)}, ..., all\n" in attn([name, "--help"]).out
    report = attncli.run(name)
    assert {*parts_of(report)} <= {*parts} <= {*parts_of(report), *shown_names_of(name)}
    monkeypatch.setattr("attncli.models.loading.load_pretrained", None)
    others = {
        "weights": ": use attn heads --maps self to see the weights of a text",
        "scores": "",
        "output": "",
    }
    for part, where in others.items():
        has = f"it has {', '.join(parts)}, ..., all"
        line = f"--show: a report of {name} holds no {part}{where}; {has}\n"
        assert attn([name, "--show", part]) == (2, "", line)


def test_a_setting_of_config_files_is_read_there(attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("experiment: self\nrelative_bias: true\nnum_buckets: 8\n")
    configured = attn(["self", "--config", str(file), "--format", "json"])
    assert configured.err == "" and json.loads(configured.out)["spec"]["num_buckets"] == 8
    assert "num_buckets: 8  # " in attn(["self", "--config", str(file), "--show-config"]).out
    assert "num_buckets" in attn(["info", "config-schema"]).out


def weights(out: str) -> object:
    report = json.loads(out)
    return report["spec"]["layer"], report["spec"]["head"], report["tensors"]["weights"]["values"]


def test_a_head_is_named_as_layer_and_head(attn: Attn, tmp_path: Path) -> None:
    """As a flag, and in a file, where the layer may have its own key."""
    command = ["self", "abcabc", "--model", str(MODEL), "--format", "json"]
    ended = attn([*command, "--head", "1:2"])
    assert ended.err == "" and weights(ended.out)[:2] == (1, 2)  # type: ignore[index]
    refused = attn([*command, "--layer", "1", "--head", "2"])
    assert (refused.code, refused.err) == (2, "--layer: is written with the head, as --head 1:2\n")
    for lines in ("head: 1:2", "head: '1:2'", "layer: 1\nhead: 2"):
        file = tmp_path / "a.yaml"
        file.write_text(f"experiment: self\nsentence: abcabc\nmodel: {MODEL}\n{lines}\n")
        configured = attn(["self", "--config", str(file), "--format", "json"])
        assert configured.err == "" and weights(configured.out) == weights(ended.out)
        over = attn(["self", "--config", str(file), "--head", "0:3", "--format", "json"])
        assert weights(over.out)[:2] == (0, 3)  # type: ignore[index]


def test_two_different_layers_are_refused(attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"experiment: self\nsentence: abc\nmodel: {MODEL}\nlayer: 0\nhead: 1:2\n")
    ended = attn(["self", "--config", str(file)])
    assert ended.code == 2
    assert "head: must match the setting layer (got 1:2)" in ended.err


def test_a_note_explains_weights_of_zero_on_later_tokens(attn: Attn) -> None:
    """A causal model looks only at earlier tokens; the note suggests the opposite direction."""
    out = " ".join(attn(["heads", "ab", "--from", "a", "--to", "b"]).out.split())
    assert "Every weight is 0: a stands before b, and this model never looks ahead." in out
    assert "To look the other way, use --from b --to a." in out
    out = attn(["heads", "the cat sat", "--from", "the cat", "--to", "sat"]).out
    assert "To look the other way, use --from sat --to 'the cat'." in " ".join(out.split())
    assert "Every weight" not in attn(["heads", "ab", "--from", "b", "--to", "a"]).out


@pytest.mark.parametrize("command", ["why", "generate"])
def test_the_next_step_names_the_strongest_head(attn: Attn, command: str) -> None:
    (report,) = [json.loads(attn([command, "abcabc", "--format", "json"]).out)]
    head = "{layer}:{head}".format(**report["statistics"]["heads"][0])
    assert f"Next, with attn {command}: --model FOLDER | --head {head} | " in attn([command, "abcabc"]).out
    assert "--head" not in attn([command, "abcabc", "--head", head]).out.splitlines()[-1]
