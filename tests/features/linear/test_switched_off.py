"""Models with layers that this feature reads, if it is off: they are reported like unknown layers."""

import json
from pathlib import Path

import pytest

from tests.hybrids import HybridFolders
from tests.test_plugins import attn
from tools.architecture_sweep.folders import text_of

WHY = " (the feature linear is switched off)"
LINE = f"Without a softmax and therefore not shown: Mamba in layers 0, 2{WHY}."
NOTHING_LOADED = """
assert not [name for name in sys.modules if name.startswith("attncli.features.linear")]
"""


@pytest.fixture(scope="module")
def jamba(tmp_path_factory: pytest.TempPathFactory) -> str:
    return HybridFolders(tmp_path_factory.mktemp("hybrids"))("jamba")


@pytest.mark.nightly
def test_without_it_layers_are_named_and_left_out_or_refused(jamba: str, tmp_path: Path) -> None:
    words = [text_of(11), "--model", jamba]
    (tmp_path / "texts.txt").write_text(f"{text_of(11)}\n{text_of(13)}\n")
    commands = [
        ["heads", *words, "--format", "json"],
        ["heads", "--texts", "texts.txt", "--model", jamba, "--format", "json"],
        ["ablate", *words, "--format", "json"],
        ["generate", *words, "--max-new-tokens", "2", "--format", "json"],
        ["self", *words, "--head", "0:0"],
        ["ablate", *words, "--heads", "0:0"],
        ["why", *words],
        ["circuit", *words],
    ]
    *shown, layer, head, logit, edges = attn(commands, tmp_path, off="linear")
    assert [each.code for each in shown] == [0] * 4, shown
    for report in (json.loads(each.out) for each in shown):
        assert report["missing"] == LINE and "linear" not in report["statistics"]
        assert {row["layer"] for row in report["statistics"]["heads"]} == {1, 3}
    assert {each.code for each in (layer, head, logit, edges)} == {2}
    assert layer.err.endswith("; layer 0 (Mamba) has no softmax\n")
    assert "must be from 1:0 to 3:3 (layers 1, 3)" in head.err
    assert f"attn cannot split the heads of its Mamba layers{WHY}: use" in logit.err
    assert edges.err.endswith(f"its Mamba layers cannot be read{WHY}\n")


@pytest.mark.nightly
def test_nothing_of_it_is_imported_for_a_model_of_attention_alone(tmp_path: Path) -> None:
    text = "to be or not to be"
    commands = [[name, text] for name in ("heads", "ablate", "why", "circuit")]
    commands += [["generate", text, "--max-new-tokens", "2"], ["heads", text, "--ablate", "0:1"]]
    ended = attn(commands, tmp_path, then=NOTHING_LOADED)
    assert [each.code for each in ended] == [0] * len(commands)
