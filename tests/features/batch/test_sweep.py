"""Grids of settings, and overrides that apply to every file."""

from pathlib import Path

import pytest

from attncli.errors import UserError
from attncli.settings.config_file import ConfigFile, Entry, config_schema
from attncli.settings.overrides import parse_overrides


def entries_of(tmp_path: Path, text: str, *overrides: str) -> list[Entry]:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    return ConfigFile(path, parse_overrides(overrides)).entries()


def test_an_experiment_becomes_the_grid_of_its_swept_settings(tmp_path: Path) -> None:
    text = (
        "experiment: multihead\nembed_dim: 12\nsweep: {num_heads: [2, 3], causal: [false, true], seed: [5]}"
    )
    steps = entries_of(tmp_path, text)
    found = [(s.spec.num_heads, s.spec.causal, s.spec.seed, s.spec.head_dim) for s in steps]
    assert found == [(2, False, 5, 6), (2, True, 5, 6), (3, False, 5, 4), (3, True, 5, 4)]
    assert all(entry.starts for entry in steps)
    assert steps[1].source == f"{tmp_path}/x.yaml:1:1 (num_heads 2, causal true, seed 5)"


def test_steps_run_as_a_whole_at_each_point(tmp_path: Path) -> None:
    text = """
defaults: {embed_dim: 8}
sweep: {seed: [1, 2], head_dim: [3]}
steps:
  - {experiment: self}
  - {experiment: cross, head_dim: 5}
  - {experiment: norm}
"""
    steps = entries_of(tmp_path, text)
    assert [(s.spec.experiment, s.spec.seed, s.starts, s.reseed) for s in steps] == [
        ("self", 1, True, False),
        ("cross", 1, False, False),
        ("norm", 1, False, False),
        ("self", 2, True, False),
        ("cross", 2, False, False),
        ("norm", 2, False, False),
    ]
    assert [steps[0].spec.head_dim, steps[1].spec.head_dim] == [3, 5]


def test_a_list_is_swept_as_a_list_of_lists(tmp_path: Path) -> None:
    text = "experiment: scale-demo\nsweep: {factors: [[1, 8], [2]], head_dim: [4, [4, 8]]}"
    assert [(s.spec.factors, s.spec.head_dim) for s in entries_of(tmp_path, text)] == [
        ([1, 8], [4]),
        ([1, 8], [4, 8]),
        ([2], [4]),
        ([2], [4, 8]),
    ]


def test_a_range_has_both_its_ends(tmp_path: Path) -> None:
    ranges = "{head_dim: {from: 8, to: 3, step: -2}, scale: {from: 0.1, to: 0.35, step: 0.1}}"
    text = f"experiment: self\nsweep: {ranges}"
    points = [(s.spec.head_dim, s.spec.scale) for s in entries_of(tmp_path, text)]
    assert points == [(size, scale) for size in (8, 6, 4) for scale in (0.1, 0.2, 0.3)]
    (seed,) = entries_of(tmp_path, "experiment: self\nsweep: {seed: {from: 3, to: 3}}")
    assert seed.spec.seed == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("4..16", "must be a list of values to sweep over, or a range: {from: 4, to: 16, step: 4}"),
        ("{from: 4, until: 8}", "must be a range such as {from: 4, to: 16, step: 4} (got until)"),
        ("{from: 4}", "must be a range of numbers, such as {from: 4, to: 16, step: 4}"),
        ("{from: a, to: nan}", "must be a range of numbers, such as {from: 4, to: 16, step: 4}"),
        ("{from: 1, to: 1e99}", "must be a range of numbers, such as {from: 4, to: 16, step: 4}"),
        (
            "{from: 4, to: 8, step: 0}",
            "must have from 1 to 100,000 values: `step` must lead from `from` to `to`",
        ),
        ("{from: 4, to: 8, step: 1e-9}", "must have from 1 to 100,000 values"),
        ("{from: 0, to: 2, step: 0.5}", "must be a whole number (got 0.5)"),
    ],
)
def test_an_invalid_range_is_one_line(tmp_path: Path, values: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, f"experiment: self\nsweep: {{head_dim: {values}}}")
    assert any(line.startswith(f"{tmp_path}/x.yaml:2:9: head_dim: {message}") for line in caught.value.lines)


def test_an_impossible_point_is_reported_once_with_its_place(tmp_path: Path) -> None:
    text = "experiment: multihead\nembed_dim: 12\nsweep:\n  seed: [1, 2]\n  num_heads: [4,\n    5]"
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, text)
    (line,) = caught.value.lines
    assert line.endswith(
        "x.yaml:2:1: embed_dim (12) must be divisible by num_heads (5) unless head_dim is set"
    )


def test_a_typo_is_reported_together_with_a_bad_sweep(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, "experiment: self\nhead_dim: 0\ncausl: true\nsweep: {seed: [x]}")
    places = [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in caught.value.lines]
    assert places == [["x.yaml:2:1", "head_dim"], ["x.yaml:3:1", "causl"], ["x.yaml:4:16", "seed"]]


def test_overrides_replace_settings_of_steps_and_grid(tmp_path: Path) -> None:
    text = "defaults: {sentence: a}\nsweep: {head_dim: [3, 4], causal: [true, false]}\n"
    text += "steps: [{experiment: self, value_dim: 2, seed: 1}, {experiment: norm}]"
    steps = entries_of(tmp_path, text, "head_dim=7", "value_dim=9", "num_tokens=5", "seed=3")
    assert [s.spec.experiment for s in steps] == ["self", "norm", "self", "norm"]
    for entry in steps[::2]:
        spec = entry.spec
        assert (spec.head_dim, spec.value_dim, spec.num_tokens, spec.sentence) == (7, 9, 5, None)
    assert {entry.spec.seed for entry in steps} == {3}
    assert [entry.reseed for entry in steps[:2]] == [True, False], "overriding a seed makes no step reseed"


def test_an_override_of_a_list_is_comma_separated(tmp_path: Path) -> None:
    (entry,) = entries_of(tmp_path, "experiment: scale-demo", "factors=1, 2", "head_dim=4,8")
    assert (entry.spec.factors, entry.spec.head_dim) == ([1, 2], [4, 8])


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("head_dim", "--set: must be KEY=VALUE (got 'head_dim')"),
        ("=3", "--set: must be KEY=VALUE (got '=3')"),
        ("head_dim=0", "--set head_dim: must be greater than 0 (got 0)"),
        ("num_tokens=5", "--set num_tokens: must be a smaller whole number"),
    ],
)
def test_errors_of_overrides(tmp_path: Path, override: str, line: str) -> None:
    if override.startswith("num_tokens"):
        override += "0" * 5000
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, "experiment: self", override)
    (told,) = caught.value.lines
    assert told.startswith(line)


def test_the_schema_knows_sweeps() -> None:
    (multihead,) = [part for part in config_schema()["oneOf"] if part["title"] == "multihead"]
    sweep = multihead["properties"]["sweep"]["properties"]
    of_list, of_range = sweep["num_heads"]["anyOf"]
    assert of_list["items"]["exclusiveMinimum"] == 0 and "experiment" not in sweep
    assert of_range["required"] == ["from", "to"]


def test_a_single_command_takes_no_sweep(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("experiment: self\nsweep: {seed: [1, 2]}")
    with pytest.raises(
        UserError, match=r"x.yaml:2:1: sweep: makes several experiments: run them with `attn batch"
    ):
        ConfigFile(path).single("self")


def test_a_sweep_stands_at_the_top(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, "steps:\n  - experiment: self\n    sweep: {seed: [1]}")
    message = "x.yaml:3:5: sweep: must be at the top level of the file, next to `steps:` or `experiment:`"
    assert caught.value.lines == (f"{tmp_path}/{message}",)
