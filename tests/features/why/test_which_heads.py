"""Names of heads and texts on the command line and in files, and heads with a pattern."""

import json
import re
from pathlib import Path

import pytest

from tests.conftest import Attn

TEXT = "abcabcabc"


@pytest.mark.nightly
def test_a_setting_has_two_names(attn: Attn, tmp_path: Path) -> None:
    for command, names in (("ablate", ("--heads", "--head")), ("why", ("--head", "--heads"))):
        usual, other = (attn([command, TEXT, name, "1:0", "--format", "json"]) for name in names)
        assert usual.code == 0 and other.out == usual.out and not other.err, command
    both = attn(["why", TEXT, "--head", "1:0", "--heads", "1:1"])
    assert both.code == 2 and "takes one value (got 1:0, 1:1)" in both.err
    several = json.loads(
        attn(["ablate", TEXT, "--head", "1:0", "--heads", "1:1,0:1", "--format", "json"]).out
    )
    assert sorted(several["spec"]["heads"]) == ["0:1", "1:0", "1:1"]
    watched = attn(["watch", "lessons/learning-to-copy.db", "--heads", "1:1"])
    assert watched.code == 0 and "head 1:1" in watched.out
    assert "--heads" not in attn(["why", "--help-all"]).out


@pytest.mark.parametrize(
    ("yaml", "flags"),
    [
        ("experiment: why\ntext: abcabcabc\nheads: [1:0]\n", ["--head", "1:0"]),
        ("experiment: why\ntext: abcabcabc\nheads: 1:0\n", ["--head", "1:0"]),
        ("experiment: ablate\ntext: abcabcabc\nhead: 1:0\n", ["--heads", "1:0"]),
        ("experiment: heads\ntext: abcabcabc\n", []),
    ],
)
def test_files_accept_both_names(yaml: str, flags: list[str], attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml)
    command = yaml.split()[1]
    from_file = attn([command, "--config", str(file), "--format", "json"])
    assert from_file.code == 0, from_file.err
    assert from_file.out == attn([command, TEXT, *flags, "--format", "json"]).out


def test_both_names_of_a_setting_in_a_file_are_refused(attn: Attn, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("experiment: heads\ntext: abc\nsentence: abc\n")
    ended = attn(["heads", "--config", str(file)])
    assert ended.code == 2 and "text: is the same as sentence: give one of them" in ended.err


@pytest.mark.parametrize("name", ["induction", "previous_token", "previous-token"])
def test_heads_with_a_pattern_are_sorted_by_strength(name: str, attn: Attn) -> None:
    every = json.loads(attn(["heads", "--format", "json"]).out)["statistics"]
    found = json.loads(attn(["heads", "--pattern", name, "--format", "json"]).out)["statistics"]
    (pattern,) = [row for row in every["patterns"] if row["pattern"] == re.sub("[-_]", " ", name)]
    statistic = pattern["statistic"]
    above = [row for row in every["heads"] if row[statistic] > pattern["threshold"]]
    assert found["heads"] == sorted(above, key=lambda row: -row[statistic]) and len(above) == pattern["heads"]
    assert found["patterns"] == every["patterns"]


def test_a_pattern_without_heads_is_reported_and_an_unknown_one_refused(attn: Attn, tmp_path: Path) -> None:
    none = attn(["heads", "--pattern", "next token"])
    assert none.code == 0 and "No head has this pattern, next token: no score is above 0.4." in none.out
    assert attn(["heads", "--pattern", "next token", "--format", "csv"]).code == 0
    saved = str(tmp_path / "none.json")
    assert attn(["heads", "--pattern", "next token", "-o", saved]).code == 0
    again = attn(["show", saved])
    assert again.code == 0 and again.out.partition("Next,")[0] == none.out.partition("Next,")[0]
    for more in (["--show", "all"], ["--format", "csv"], ["-o", str(tmp_path / "none.html")]):
        assert attn(["show", saved, *more]).code == 0, more
    unknown = attn(["heads", "--pattern", "inductoin"])
    assert unknown.code == 2 and "did you mean 'induction'" in unknown.err
    for flags in (["--statistic", "entropy"], ["--pattern", "adjacent patches"]):
        assert attn(["heads", "--pattern", "induction", *flags]).code == 2
