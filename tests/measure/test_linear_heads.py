"""Heads of layers without a softmax in a survey: their statistics, against loops over whole matrices."""

from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attncli import library
from attncli.models.linear import CapturedLinear, hearing_linear_layers
from attncli.models.loading import in_use, open_model
from attncli.models.pretrained import read_text
from attncli.records.surveys import LinearHead
from attncli.records.values import Mask
from attncli.report import Report
from attncli.saved import SAVED
from tests.core.test_signed_rows import naive
from tests.running import run
from tools.architecture_sweep.decaying import with_decay
from tools.architecture_sweep.folders import save_model, save_tokenizer, text_of, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own

SHOWN = (
    "qwen3_next",
    "kimi_linear",
    "bamba",
    "falcon_h1",
    "minimax",
    "jamba",
    "zamba",
    "zamba2",
    "nemotron_h",
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a tiny model whose states decay as those of trained ones do."""
    folders: dict[str, str] = {}

    def save(name: str) -> str:
        if name not in folders:
            folder = tmp_path_factory.mktemp(name)
            with_decay(tiny_model(name)).save_pretrained(folder)
            save_tokenizer(folder)
            folders[name] = str(folder)
        return folders[name]

    return save


def layers_on(folder: str, text: str) -> list[CapturedLinear]:
    layers: list[CapturedLinear] = []
    with in_use(open_model(folder)) as pretrained, torch.no_grad():
        pretrained.model.config.use_cache = False
        with hearing_linear_layers(pretrained.model, layers.append):
            pretrained.model(**pretrained.inputs([read_text(pretrained, text)]))
    return layers


@pytest.mark.parametrize("name", SHOWN)
def test_the_heads_of_a_survey_are_those_of_loops(saved: Callable[[str], str], name: str) -> None:
    folder, text = saved(name), text_of(37)
    found = library.survey(folder, text)
    layers = layers_on(folder, text)
    rows = {(row.module, row.head): row for row in found.linear}
    assert len(rows) == len(found.linear) == sum(layer.heads.shape[1] for layer in layers) > 0
    for layer in layers:
        decay = layer.heads.log_decay
        assert decay is not None
        for head, weights in enumerate(layer.heads.weights()[0]):
            row = rows[layer.module, head]
            assert (row.layer, row.mixer) == (layer.layer, layer.mixer)
            expected = naive(weights) | {"half_life": log(2) / -float(decay[0, :, head].double().mean())}
            for statistic, number in expected.items():
                assert row[statistic] == pytest.approx(number, rel=1e-4, abs=1e-5), statistic
    mixed = [note for note in found.notes if note.startswith("Not shown")]
    assert not mixed, "every layer is there"


def test_what_is_no_matrix_of_heads_is_named_as_before(saved: Callable[[str], str]) -> None:
    found = library.survey(saved("lfm2"), text_of(19))
    assert not found.linear and found.notes[0].startswith(
        "Not shown, as it has no softmax: short convolution"
    )


def of_heads(folder: str, **settings: Any) -> Report:
    return run("heads", model=folder, sentence=text_of(29), **settings)


def test_the_report_lists_them_and_says_nothing_is_missing(saved: Callable[[str], str]) -> None:
    report = of_heads(saved("qwen3_next"))
    data = report.to_data()
    assert len(data["statistics"]["linear"]) == 8 and report.missing == ""
    assert set(data["statistics"]["linear"][0]) == set(LinearHead.columns)
    again = SAVED.validate_python(data).restored()
    assert again.to_data() == data


def test_their_maps_are_the_matrices(saved: Callable[[str], str]) -> None:
    """Signed, so that every view draws them with zero in the middle of its colours."""
    folder = saved("qwen3_next")
    tensors = of_heads(folder, maps="self").tensors
    drawn = tensors["linear_weights"]
    assert drawn.axes == ("layer", "head", "query", "key") and drawn.mask == Mask(causal=True)
    layers = {layer.layer: layer.heads.weights()[0] for layer in layers_on(folder, text_of(29))}
    for number, (signed, softmax) in enumerate(zip(drawn.values, tensors["weights"].values, strict=False)):
        assert np.isnan(signed).all() == (number not in layers) == np.isfinite(softmax).any()
        if number in layers:
            assert np.abs(signed - layers[number].numpy()).max() <= 1e-6
    assert np.nanmin(drawn.values) < 0 < np.nanmax(drawn.values)


def test_of_long_texts_the_maps_are_of_attention_alone(saved: Callable[[str], str]) -> None:
    report = run("heads", model=saved("qwen3_next"), sentence=text_of(131), maps="self")
    assert "linear_weights" not in report.tensors and report.table("linear")
    assert any(note.startswith("Maps of heads without a softmax") for note in report.notes)


def test_layers_with_both_kinds_have_both(saved: Callable[[str], str]) -> None:
    report = of_heads(saved("falcon_h1"))
    both = {name: {row["layer"] for row in report.table(name)} for name in ("heads", "linear")}
    assert both["heads"] == both["linear"] == {0, 1}


@pytest.mark.parametrize(
    "asked", [{"sort": "entropy"}, {"skip_sink": 1}, {"words": "true"}, {"statistic": "previous_token"}]
)
def test_where_they_have_no_part_the_report_says_so(
    saved: Callable[[str], str], asked: dict[str, Any]
) -> None:
    report = of_heads(saved("qwen3_next"), **asked)
    assert report.missing == "Not shown, as it has no softmax: gated delta net in layers 0, 2."
    assert not report.table("linear")


def test_a_model_of_attention_alone_has_none(tmp_path: Path) -> None:
    save_model("qwen2", tmp_path)
    report = of_heads(str(tmp_path))
    assert not report.table("linear") and "linear" not in report.to_data()["statistics"]


def test_texts_that_run_together_have_each_their_own(saved: Callable[[str], str]) -> None:
    from attncli.measure.heads import HeadOptions, surveyed

    texts = [text_of(23), text_of(23, seed=1)]
    with in_use(open_model(saved("qwen3_next"))) as pretrained:
        readings = [read_text(pretrained, text) for text in texts]
        together = surveyed(pretrained, readings, HeadOptions(linear=True))
        for number, reading in enumerate(readings):
            alone = surveyed(pretrained, [reading], HeadOptions(linear=True))
            for ours, theirs in zip(
                together.survey_of(number).linear, alone.survey_of(0).linear, strict=True
            ):
                assert ours.local_share == pytest.approx(theirs.local_share, rel=1e-4)
                assert ours.row_sum == pytest.approx(theirs.row_sum, rel=1e-3, abs=1e-6)
