"""Errors in a config file are reported together, one line each, with their places."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attncli.commands.command import OUTPUT_FLAGS
from attncli.commands.experiment import CONFIG, SHOW_CONFIG
from attncli.errors import UserError
from attncli.features.batch import question as batch
from attncli.settings.config_file import ConfigFile, read_yaml
from attncli.settings.fields import COMMAND_FLAGS


def errors_of(tmp_path: Path, text: str | bytes) -> list[str]:
    path = tmp_path / "x.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError) as caught:
        ConfigFile(path).entries()
    assert caught.value.exit_code == 2
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.lines]


ONE_ERROR = {
    "head_dim: 0": "x.yaml:2:1: head_dim: must be greater than 0 (got 0)",
    "head_dim: -3": "x.yaml:2:1: head_dim: must be greater than 0 (got -3)",
    "head_dim: sixteen": "x.yaml:2:1: head_dim: must be a whole number (got sixteen)",
    "head_dim: 1.5": "x.yaml:2:1: head_dim: must be a whole number (got 1.5)",
    "head_dim: [1, 2]": "x.yaml:2:1: head_dim: takes one value (got [1, 2]): to run each, put head_dim: [1, 2] under sweep:",
    "head_dim: []": "x.yaml:2:1: head_dim: must be a whole number (got [])",
    "head_dim: {a: 1}": "x.yaml:2:1: head_dim: must be a value, not a mapping",
    "head_dm: 3": "x.yaml:2:1: head_dm: unknown key (did you mean 'head_dim'?)",
    "head-dim: 3": "x.yaml:2:1: head-dim: unknown key (did you mean 'head_dim'?)",
    "causal: maybe": "x.yaml:2:1: causal: must be true or false (got maybe)",
    "scale: squareroot": "x.yaml:2:1: scale: must be one of sqrt, fourth-root, none or a number (got squareroot)",
    "scale: .nan": "x.yaml:2:1: scale: must be one of sqrt, fourth-root, none or a number (got .nan)",
    "scale: nan": "x.yaml:2:1: scale: must be a finite number (got nan)",
    "projection: linaer": "x.yaml:2:1: projection: got linaer (did you mean 'linear'?): "
    "must be one of linear, uniform or none",
    "projection_order: [key, key, value]": "x.yaml:2:1: projection_order: must name query, key and value once each "
    "(got key, key, value)",
    "seed: 1\nseed: 2": "x.yaml:3:1: seed: duplicate key, first used on line 2",
    'sentence: ""': "x.yaml:2:1: sentence: must hold at least one token (got an empty text)",
    "sentence: a\nnum_tokens: 3": "x.yaml:3:1: num_tokens: cannot be combined with sentence: give one of them",
    "batch_size: 3": "x.yaml:2:1: batch_size: needs num_tokens",
    "file: nowhere.txt": "x.yaml:2:1: file: no such file: nowhere.txt",
    "sentence: &a x\ncontext: *a": "x.yaml:3:10: alias *a: aliases are not allowed: write the value out",
    "sentence: !!python/object/apply:os.system [ls]": "x.yaml:2:11: tag tag:yaml.org,2002:python/object/apply:"
    "os.system: tags are not allowed: write the plain value",
    "sweep: [1, 2]": "x.yaml:2:1: sweep: must be a mapping from settings to lists of values",
    "sweep: {}": "x.yaml:2:1: sweep: must be a mapping from settings to lists of values",
    "sweep: {seed: 1}": "x.yaml:2:9: seed: must be a list of values to sweep over, or a range: {from: 4, to: 16, step: 4}",
    "sweep: {seed: []}": "x.yaml:2:9: seed: must be a list of values to sweep over, or a range: {from: 4, to: 16, step: 4}",
    "sweep: {seed: [1, [2, {a: 1}]]}": "x.yaml:2:19: seed: must be a list of plain values",
    "sweep: {seed: [1, null]}": "x.yaml:2:19: seed: must be a value (got nothing)",
    "sweep: {sed: [1]}": "x.yaml:2:15: sed: unknown key (did you mean 'seed'?)",
    "sweep: {seed: [1, x]}": "x.yaml:2:19: seed: must be a whole number (got x)",
    "seed: 3\nsweep: {seed: [1, 2]}": "x.yaml:3:9: seed: is also set at x.yaml:2:1: remove one of the two",
    "sweep: {num_tokens: [3], sentence: [a]}": "x.yaml:2:22: num_tokens: cannot be combined with sentence: give one of them",
    f"sweep: {{seed: [{', '.join('1' * 400)}], head_dim: [{', '.join('1' * 400)}]}}": "x.yaml:2:1: sweep: makes 160,000 points, which is more than 100,000",
    "projection: none\nhead_dim: 3": "x.yaml:3:1: head_dim: cannot be combined with projection none",
    "embedding: previous": "x.yaml:2:1: embedding: previous needs an earlier step with a table of word vectors to reuse",
    "defaults: {seed: 1}": "x.yaml:2:1: defaults: must be at the top level of the file, next to `steps:`",
    "embedding: ./random": "x.yaml:2:1: embedding: no such file: random (or one of random, gaussian, integers, previous)",
    "sentence: [the cat, the dog]": "x.yaml:2:1: sentence: takes one value (got [the cat, the dog]): to run each, "
    "put sentence: [the cat, the dog] under sweep:",
    "scale: [sqrt]": "x.yaml:2:1: scale: takes one value (got [sqrt]): to run each, put scale: [sqrt] under sweep:",
    "sweep: {causal: [[true, false]]}": "x.yaml:2:18: causal: takes one value (got [true, false]): to run each, "
    "put causal: [true, false] under sweep:",
    "format: json": "x.yaml:2:1: format: is a flag of the command, not a setting: use --format json",
    "output: runs.db": "x.yaml:2:1: output: is a flag of the command, not a setting: use --output runs.db",
    "dry-run: true": "x.yaml:2:1: dry-run: is a flag of the command, not a setting: use --dry-run",
    "sweep: {workers: [1]}": "x.yaml:2:19: workers: is a flag of the command, not a setting: use --workers 1",
    "a: b: c": 'x.yaml:2:5: is not valid YAML: mapping values are not allowed here: put the text in quotes: a: "b: c"',
    "\tseed: 1": "x.yaml:2:1: contains a tab: use spaces, both for indentation and between a key and its value",
    "seed:\t1": "x.yaml:2:6: contains a tab: use spaces, both for indentation and between a key and its value",
    "logits: [1, 2\nseed: 3": "x.yaml:2:9: [ is not closed: write ] after its last item",
    "logits: [1, 2,\n  3": "x.yaml:2:9: [ is not closed: write ] after its last item",
    "sweep: {seed: [1, 2]": "x.yaml:2:8: { is not closed: write } after its last item",
    'logits: ["a" "b"]': "x.yaml:2:14: must be a comma, or ] to close the [ in column 9",
    'sentence: "a b\nseed: 1': 'x.yaml:2:11: " is not closed: write " at the end of the text',
    "sentence: 'it's'": "x.yaml:2:15: text after the closing quote: put a text that contains quotes in the other kind of quotes",
    'sentence: "a\\qb"': "x.yaml:2:14: \\q is not an escape sequence: put the text in single quotes",
    "seed 3": "x.yaml:2:1: has no colon: write KEY: VALUE, with a space after the colon",
    "sentence: a\n  seed: 1": "x.yaml:3:7: is indented differently from the lines before it: indent the keys of a mapping equally",
    "sentence: @a": 'x.yaml:2:11: a value cannot begin with @: put the text in quotes: sentence: "@a"',
    "sweep: - seed: 1": "x.yaml:2:8: a list must start on a new line, or be written in brackets: [A, B]",
    "? [a]\n: 1": "x.yaml:2:3: a key must be a word",
}


def test_every_flag_of_a_batch_is_known_as_one() -> None:
    of_commands = {
        parameter.name
        for parameters in (batch.PARAMETERS, OUTPUT_FLAGS, (CONFIG, SHOW_CONFIG))
        for parameter in parameters
    }
    assert of_commands == {*COMMAND_FLAGS, "files", "sentences"}


@pytest.mark.parametrize("text", ONE_ERROR)
def test_each_error_is_one_line_at_its_place(tmp_path: Path, text: str) -> None:
    lines = errors_of(tmp_path, f"experiment: self\n{text}\n")
    lines = [line.replace(f"{tmp_path}/x", "x") for line in lines]
    assert lines == [ONE_ERROR[text].replace("nowhere.txt", f"{tmp_path}/nowhere.txt")] or lines == [
        ONE_ERROR[text]
    ]


def test_defaults_are_those_of_the_steps_experiments(tmp_path: Path) -> None:
    """`method` is also a setting of experiments without swap."""
    steps = "steps:\n  - {experiment: ablate, sentence: a b, other: a c}\n"
    assert errors_of(tmp_path, f"defaults: {{method: nothing}}\n{steps}") == [
        "x.yaml:1:12: method: must be one of zero, mean, sink or swap (got nothing)"
    ]
    (tmp_path / "y.yaml").write_text(f"defaults: {{method: swap}}\n{steps}")
    (entry,) = ConfigFile(tmp_path / "y.yaml").entries()
    assert entry.spec.model_dump()["method"] == "swap"
    assert errors_of(tmp_path, f"defaults: {{experiment: ablate, method: swap}}\n{steps}") == [
        "x.yaml:1:12: experiment: must be named in each step"
    ]


def test_all_errors_are_reported_together_in_line_order(tmp_path: Path) -> None:
    text = """
defaults:
  sentnce: hi
  eps: none
  seed: -1
steps:
  - experiment: self
    head_dim: 0
    causal: maybe
    sentence: a
    num_tokens: 2
  - experiment: slef
  - head_dim: 2
  - just text
  - experiment: multihead
    embed_dim: 10
    num_heads: 3
  - experiment: multihead
    projection: none
    num_heads: 3
    head_dim: 21
    defaults: {seed: 1}
"""
    assert errors_of(tmp_path, text) == [
        "x.yaml:3:3: sentnce: unknown key (did you mean 'sentence'?)",
        "x.yaml:4:3: eps: must be a number (got none)",
        "x.yaml:5:3: seed: must be at least 0 (got -1)",
        "x.yaml:8:5: head_dim: must be greater than 0 (got 0)",
        "x.yaml:9:5: causal: must be true or false (got maybe)",
        "x.yaml:11:5: num_tokens: cannot be combined with sentence: give one of them",
        "x.yaml:12:5: experiment: got 'slef' (did you mean 'self'?): "
        "must be one of average, self, multihead, cross, scale-demo, norm, heads, generate, ablate, cache, why, source, separate, circuit, pitfalls",
        "x.yaml:13:5: experiment: must be given: one of average, self, multihead, cross, scale-demo, norm, heads, generate, ablate, cache, why, source, separate, circuit, pitfalls",
        "x.yaml:14:5: steps: each step must be a mapping with `experiment: NAME`",
        "x.yaml:16:5: embed_dim (10) must be divisible by num_heads (3) unless head_dim is set",
        "x.yaml:20:5: embed_dim (64) must be divisible by num_heads (3)",
        "x.yaml:21:5: head_dim: cannot be combined with projection none",
        "x.yaml:22:5: defaults: must be at the top level of the file, next to `steps:`",
    ]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "x.yaml: is empty: it must contain `experiment: NAME` or `steps:`"),
        ("- a\n- b", "x.yaml:1:1: must be a mapping with `experiment: NAME` or `steps:`"),
        ("just text", "x.yaml:1:1: must be a mapping with `experiment: NAME` or `steps:`"),
        (b"experiment: caf\xe9", "x.yaml: is not UTF-8 text (byte 15)"),
        ("experiment: self\n---\nexperiment: self", "x.yaml:2:1: must be a single document: use `steps:` "
         "for several experiments"),
        ("experiment: self\nsentence: \x07", "x.yaml:2: character U+0007 is not allowed in YAML"),
        ("steps: []", "x.yaml:1:1: steps: must be a list of experiments"),
        ("steps: [{experiment: norm}]\nseed: 1", "x.yaml:2:1: seed: must be in a step or under `defaults:`"),
    ],
)  # fmt: skip
def test_contents_that_are_not_a_config_file_are_refused(
    tmp_path: Path, content: str | bytes, line: str
) -> None:
    assert errors_of(tmp_path, content) == [line]


def test_deep_nesting_and_alias_bombs_are_refused_at_once(tmp_path: Path) -> None:
    deep = "experiment: self\nsentence: " + "[" * 4000 + "]" * 4000
    assert errors_of(tmp_path, deep) == ["x.yaml:2:26: nested deeper than 16 levels"]
    deep_block = "".join(f"{' ' * i}a:\n" for i in range(4000))
    assert errors_of(tmp_path, deep_block) == ["x.yaml:16:16: nested deeper than 16 levels"]
    bomb = "a: &a [x, x]\n" + "".join(
        f"{c}: &{c} [*{p}, *{p}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert errors_of(tmp_path, bomb) == ["x.yaml:2:8: alias *a: aliases are not allowed: write the value out"]


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere.yaml: no such file"):
        read_yaml(tmp_path / "nowhere.yaml")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory"):
        read_yaml(tmp_path)


@given(st.text(max_size=200) | st.text(alphabet="a:-[]{}#&*!|>'\"%@` \n1", max_size=60))
def test_no_text_whatever_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(UserError):
        ConfigFile(path).entries()
